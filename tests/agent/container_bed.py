"""A real podman with a store of its own, and docker's own program talking to it; nothing of it is left behind.

Answers for: images made of a static program or of a program with its libraries, and the end of every container in the
store. It may not know what is tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import Rig, alive
from tests.beds import needs

SOURCE = Path(__file__).parents[1] / "engines/tiny_engine.c"
IMAGE = "localhost/tiny:1"
NEEDED = needs("podman", "runc", "cc")
#: Root of a small VM lacks CAP_SYS_RESOURCE, and podman's own defaults ask for more than it has.
CONF = """[containers]
default_ulimits=["nofile=20000:20000","nproc=32768:32768"]
[engine]
cgroup_manager="cgroupfs"
runtime="runc"
events_logger="none"
tmp_dir="{d}/tmp"
lock_type="file"
"""
STORE = """[storage]
driver="vfs"
graphroot="{d}/root"
runroot="{d}/run"
"""


class Bed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        conf, store = folder / "containers.conf", folder / "storage.conf"
        conf.write_text(CONF.format(d=folder))
        store.write_text(STORE.format(d=folder))
        self.env = {"CONTAINERS_CONF": str(conf), "CONTAINERS_STORAGE_CONF": str(store)}

    def podman(self, *args: str, check: bool = True) -> str:
        done = subprocess.run(
            ["podman", *args],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert not check or done.returncode == 0, (args, done.stdout, done.stderr)
        return done.stdout

    def boxes(self) -> list[dict[str, Any]]:
        ids = self.podman("ps", "--all", "--quiet", "--no-trunc").split()
        # One may be removed in between.
        return list(json.loads(self.podman("inspect", *ids, check=False))) if ids else []

    def box(self) -> dict[str, Any]:
        (found,) = self.boxes()
        return found

    def tiny(self) -> None:
        program = self.folder / "tiny"
        subprocess.run(["cc", "-static", "-O1", "-o", str(program), str(SOURCE)], check=True)
        self.image(IMAGE, {"tiny": program}, 'ENTRYPOINT ["/tiny"]')

    def image(self, name: str, files: dict[str, Path], *changes: str) -> None:
        path = self.folder / "image.tar"
        with tarfile.open(path, "w", dereference=True) as tar:
            for inside, outside in files.items():
                tar.add(outside, inside)
        self.podman("import", *(f"--change={c}" for c in changes), str(path), name)
        path.unlink()

    def no_cgroup(self, box_id: str) -> None:
        """What is left where a container's watcher was killed: nobody tidies up behind it."""
        for folder in Path("/sys/fs/cgroup").glob(f"*/libpod_parent/libpod-{box_id}"):
            folder.rmdir()

    def clear(self) -> None:
        self.podman("rm", "--all", "--force", "--time", "0")


@contextlib.contextmanager
def bed(folder: Path) -> Iterator[Bed]:
    made = Bed(folder)
    try:
        yield made
    finally:
        made.clear()
        made.podman("rmi", "--all", "--force", check=False)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def docker_door(made: Bed) -> Iterator[dict[str, str]]:
    """`docker` itself, served by podman: its real words and options without its daemon."""
    path = made.folder / "docker.sock"
    url = f"unix://{path}"
    with subprocess.Popen(
        ["podman", "system", "service", "--time", "0", url],
        env={**os.environ, **made.env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as service:
        try:
            end = time.monotonic() + 20
            while not path.exists():
                assert time.monotonic() < end, "podman's service does not come up"
                time.sleep(0.02)
            yield {"DOCKER_HOST": url}
        finally:
            service.terminate()


def boxed(*flags: str, **changes: Any) -> dict[str, Any]:
    base = {"launcher": "podman", "image": IMAGE, "command": ("--port", "${port}", *flags)}
    return {**base, **changes}


def podman_start(rig: Rig, n: int = 1, *flags: str, **changes: Any) -> dict[str, Any]:
    """An engine of the tiny image, ready."""
    return rig.ready(n, **boxed(*flags, **changes))


class Door:
    """Stands before podman on the agents' PATH: it is away, or holds back one of its verbs."""

    def __init__(self, folder: Path, made: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "door"
        self.folder.mkdir()
        real = shutil.which("podman")
        script = self.folder / "podman"
        script.write_text(
            f"""#!/bin/sh
cd {self.folder}
echo "$*" >>calls
if [ -e away ]; then echo "Error: nobody answers" >&2; exit 125; fi
if [ -e "hold-$1" ]; then
  echo $$ >"waits-$1"
  while [ -e "hold-$1" ]; do sleep 0.05; done
fi
exec {real} "$@"
"""
        )
        script.chmod(0o755)
        for name, value in made.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")

    def away(self) -> None:
        (self.folder / "away").touch()

    def back(self) -> None:
        (self.folder / "away").unlink()

    def hold(self, verb: str) -> None:
        (self.folder / f"hold-{verb}").touch()

    def let_go(self, verb: str) -> None:
        (self.folder / f"hold-{verb}").unlink()

    def waiting(self, verb: str) -> bool:
        path = self.folder / f"waits-{verb}"
        return path.exists() and bool(path.read_text()) and alive(int(path.read_text()))

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


#: No minute is waited for in a test.
WORLD = {"again_s": 0.3, "creation_grace_s": 0.3, "beat_s": 0.5}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with bed(tmp_path_factory.mktemp("podman")) as made:
        made.tiny()
        yield made


@pytest.fixture
def podman(whole: Bed) -> Iterator[Bed]:
    yield whole
    whole.clear()


@pytest.fixture
def door(tmp_path: Path, podman: Bed, monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(tmp_path, podman, monkeypatch)


@pytest.fixture
def rig(tmp_path: Path, door: Door) -> Iterator[Rig]:  # noqa: ARG001  it stands before podman
    rig = Rig(tmp_path, world=WORLD)
    yield rig
    rig.close()


def words(rig: Rig) -> list[str]:
    return rig.engine_log().splitlines()
