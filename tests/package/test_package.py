"""What people install, tried away from the checkout: the wheel's files, the one executable, the Debian package."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from llmgw import __version__
from scripts import package
from scripts.ports import free_port, free_range

FILE = package.DIST / "llmgw"
built = pytest.mark.skipif(not FILE.exists(), reason="no build/dist/llmgw (make deb, from PyPI)")
DEB = sorted(package.DIST.glob("*.deb"))
packed = pytest.mark.skipif(
    not DEB or shutil.which("dpkg-deb") is None,
    reason="no build/dist/*.deb, or no dpkg-deb (make deb)",
)
MODEL = "version: 1\nmodels: {m: {profiles: [{name: p, command: [sh, -c, exit 1], host_memory: 1MiB}]}}\n"


class Away:
    """The file alone in an empty environment, below a folder that knows nothing of the checkout."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.program = folder / "llmgw"
        shutil.copy(FILE, self.program)
        bins = folder / "bin"
        bins.mkdir()
        (bins / "python3").symlink_to(python)
        self.env = {
            "PATH": f"{bins}:/usr/bin:/bin", "HOME": str(folder), "PEX_ROOT": str(folder / "pex"),
            "XDG_STATE_HOME": str(folder / "state"),
        }  # fmt: skip

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.program), *args],
            check=False,
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )


def pythons() -> list[str]:
    """One of each of PYTHONS that is on this box, on the PATH or beside it; at least the one that runs this.

    A version manager has a program for versions that are not chosen, which only says so: what runs is asked.
    """
    usable: dict[str, str] = {}
    for version in package.PYTHONS:
        name = f"python{version}"
        beside = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/{name}"))
        for there in (shutil.which(name), *map(str, beside)):
            if there is not None and version not in usable and (real := _executable(there)):
                usable[version] = real
    return list(usable.values()) or [_executable(sys.executable)]


def _executable(python: str) -> str:
    """Where it really is: a link to a shim would ask the shim again."""
    words = [python, "-c", "import sys; print(sys.executable)"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="module", params=pythons())
def away(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Away]:
    folder = tmp_path_factory.mktemp("away")
    yield Away(folder, request.param)
    shutil.rmtree(folder, ignore_errors=True)  # 95 MB unpacked


@built
def test_the_file_says_its_version(away: Away) -> None:
    said = away("--version")
    assert (said.returncode, said.stdout, said.stderr) == (0, f"llmgw {__version__}\n", "")


@built
def test_each_python_finds_every_library_in_it() -> None:
    """One that is compiled is there once for each Python, or for all; else it fails where that Python is met."""
    with zipfile.ZipFile(FILE) as file:
        wheels = {name.split("/")[1] for name in file.namelist() if ".whl/" in name}
    found: dict[str, set[str]] = {}
    for name, *_, python, abi, _ in (w.removesuffix(".whl").split("-") for w in wheels):
        found.setdefault(name, set()).add("all" if abi in ("none", "abi3") else python)
    each = {f"cp{version.replace('.', '')}" for version in package.PYTHONS}
    assert {name: p for name, p in found.items() if p not in ({"all"}, each)} == {}
    assert "cffi" in found


@built
def test_the_file_runs_a_box(away: Away) -> None:
    """Control, agent and gateway are children of it, started by its own unpacked Python."""
    (away.folder / "catalog.yaml").write_text(MODEL)
    control, gateway, agent = (f"127.0.0.1:{free_port()}" for _ in range(3))
    first, last = free_range()
    command = [
        str(away.program), "up", "--catalog", "catalog.yaml", "--listen", control, "--gateway", gateway,
        "--agent", agent, "--ports", f"{first}-{last}", "--gpus", "none", "--node", "box",
    ]  # fmt: skip
    with (
        (away.folder / "log").open("w") as log,
        subprocess.Popen(command, env=away.env, cwd=away.folder, stdout=log, stderr=log) as up,
    ):
        try:
            assert "m" in models(gateway, away.folder / "log")
            there = f"http://{control}"
            status = away("status", "-o", "json", "--control", there)
            assert json.loads(status.stdout)["schema"] == "llmgw.status/1", status.stderr
            assert away("down", "--control", there).returncode == 0
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(60)


def models(gateway: str, log: Path) -> str:
    end = time.monotonic() + 40
    while time.monotonic() < end:
        try:
            with urlopen(f"http://{gateway}/v1/models", timeout=2) as answer:
                return str(answer.read())
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text()[-2000:])


@packed
def test_the_package_has_what_a_box_needs(tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", str(DEB[0]), str(tmp_path)], check=True)
    for target in package.INSTALLED.values():
        assert (tmp_path / target).stat().st_size > 0, target
    for unit in ("control", "agent", "gateway"):
        text = (tmp_path / package.UNITS / f"llmgw-{unit}.service").read_text()
        program = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
        assert program is not None
        assert program[1] in ("llmgw", "/usr/bin/llmgw")
    assert os.access(tmp_path / "usr/bin/llmgw", os.X_OK)


@packed
def test_its_scripts_restart_nothing(tmp_path: Path) -> None:
    """An upgrade must not choose the moment; and each script is one that sh takes."""
    subprocess.run(["dpkg-deb", "-e", str(DEB[0]), str(tmp_path)], check=True)
    for name in ("postinst", "prerm", "postrm"):
        text = (tmp_path / name).read_text()
        subprocess.run(["sh", "-n", str(tmp_path / name)], check=True)
        done = [
            line.strip() for line in text.splitlines() if not line.strip().startswith(("#", "echo"))
        ]
        assert not re.search(r"systemctl.*\b(re)?start\b|enable", "\n".join(done)), name
    stops = (tmp_path / "prerm").read_text()
    assert stops.index('"$1" = remove') < stops.index("systemctl stop")


def test_the_wheel_has_completions_pages_and_units(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    package.run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist)
    (wheel,) = dist.iterdir()
    names = [
        n.partition(".data/data/")[2]
        for n in zipfile.ZipFile(wheel).namelist()
        if ".data/data/" in n
    ]
    for name in (
        "share/bash-completion/completions/llmgw", "share/zsh/site-functions/_llmgw",
        "share/fish/vendor_completions.d/llmgw.fish", "share/man/man1/llmgw.1", "share/man/man5/llmgw-catalog.5",
        "share/llmgw/systemd/llmgw-agent.service",
    ):  # fmt: skip
        assert name in names
