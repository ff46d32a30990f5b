"""The container file, built and run: control and a gateway in containers, the agent and its engine on the host.

The base image is made of this box's own files, so that no registry is asked: a shell, env, a Python with its library.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scripts import package
from scripts.fleet import Fleet, wait_for
from scripts.generated import ROOT
from tests.agent.container_bed import Bed, bed
from tests.beds import needs
from tests.e2e.conftest import fake, model, write_catalog
from tests.systemd.fleet import Load

PYTHON = Path("/usr/bin/python3")
LIBRARY = Path("/usr/lib") / PYTHON.resolve().name
#: What programs built for an older glibc name.
STUBS = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6")
NAME = "localhost/llmgw:test"
BASE = "localhost/base:1"
pytestmark = [
    needs("podman", "runc", "ldd"),
    pytest.mark.skipif(
        not (package.DIST / "llmgw").exists(), reason="no build/dist/llmgw (make binary)"
    ),
    pytest.mark.skipif(not LIBRARY.is_dir(), reason=f"no {LIBRARY} to make a base image of"),
]


def libraries(*files: Path) -> set[str]:
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(/\S+) \(0x", said))


def base(podman: Bed) -> None:
    programs = [
        Path("/bin/sh"),
        PYTHON,
        *(Path("/usr/bin") / n for n in ("env", "mkdir", "chmod", "sed", "uname")),
    ]
    compiled = list((LIBRARY / "lib-dynload").glob("*.so"))
    path = podman.folder / "base.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("tmp", "etc", "root", "proc", "sys", "dev", "usr/local/bin"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        needed = libraries(*programs, *compiled)
        beside = {str(Path(p).parent) for p in needed if p.endswith("libc.so.6")}
        stubs = {f"{d}/{n}" for d in beside for n in STUBS if Path(d, n).exists()}
        for file in sorted({*map(str, programs), *needed, *stubs}):
            tar.add(os.path.realpath(file), file)
        tar.add(LIBRARY, str(LIBRARY), filter=_no_tests)
    path_line = "ENV PATH=/usr/local/bin:/usr/bin:/bin"
    podman.podman("import", f"--change={path_line}", str(path), BASE)
    path.unlink()


def _no_tests(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return (
        None
        if re.search(r"/(test|__pycache__|config-[^/]*|ensurepip|idlelib)$", item.name)
        else item
    )


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with bed(tmp_path_factory.mktemp("podman")) as made:
        base(made)
        file = ROOT / "packaging/container/Containerfile"
        words = [
            "build",
            "--layers=false",
            "--network",
            "none",
            "--build-arg",
            f"BASE={BASE}",
            "-t",
            NAME,
            "-f",
            str(file),
            str(ROOT),
        ]
        made.podman(*words)
        yield made


def test_another_container_adopts(podman: Bed, tmp_path: Path) -> None:
    """`rm -f` of control's container cuts nothing and ends nothing; the next one has the same engine."""
    fleet = Fleet(
        tmp_path,
        write_catalog(tmp_path / "catalog.yaml", {"alpha": model(fake("--alias", "alpha"))}),
    )
    place = {name: url.removeprefix("http://") for name, url in fleet.urls.items()}
    volumes = [
        "-v",
        f"{tmp_path}/state:/var/lib/llmgw",
        "-v",
        f"{fleet.catalog}:/etc/llmgw/catalog.yaml:ro",
    ]
    (tmp_path / "state").mkdir()

    def run(name: str, *words: str) -> None:
        podman.podman("run", "-d", "--name", name, "--network", "host", *volumes, NAME, *words)

    def control(name: str) -> None:
        run(
            name,
            "control",
            "--gateway",
            "none",
            "--listen",
            place["control"],
            "--settle-timeout",
            "5s",
        )

    def engine() -> int | None:
        found = fleet.replicas("alpha")
        return found[0]["shards"][0]["pid"] if found else None

    try:
        control("one")
        run("front", "gateway", "--control", fleet.urls["control"], "--listen", place["gateway"])
        fleet.start("agent")
        pid = wait_for(engine, "the engine", 40)
        fleet.served("alpha")
        epoch = fleet.life("control")
        with Load(lambda: _ask(fleet.urls["gateway"])) as load:
            podman.podman("rm", "-f", "--time", "0", "one")
            control("two")
            fleet.back("control", epoch)
            assert wait_for(engine, "the engine again", 40) == pid
        assert not load.failed
        assert "one" not in podman.podman("ps", "-a", "--format", "{{.Names}}").split()
    except (AssertionError, TimeoutError) as e:
        for name in podman.podman("ps", "-a", "--format", "{{.Names}}").split():
            e.add_note(f"{name}: {said_by(podman, name)}")
        raise
    finally:
        podman.clear()
        fleet.close()


def said_by(podman: Bed, name: str) -> str:
    """Both streams; a failed test shows them."""
    words = ["podman", "logs", name]
    return subprocess.run(
        words,
        env=os.environ | podman.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    ).stdout[-2000:]


def _ask(gateway: str) -> str:
    body = {"model": "alpha", "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{gateway}/v1/chat/completions", json=body, timeout=20, trust_env=False)
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])
