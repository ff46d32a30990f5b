"""The Debian package in a booted machine: installed, upgraded under load, removed, purged, and back again.

One story: each step stands on the one before. Needs what tests/systemd needs, and `make deb`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from llmgw import __version__
from scripts import package
from scripts.fleet import wait_for
from tests.beds import needs, nspawn
from tests.systemd.fleet import UNITS, UnitFleet
from tests.systemd.machine import Machine

DEB = sorted(package.DIST.glob("*.deb"))
pytestmark = [
    nspawn(),
    needs("dpkg", "dpkg-deb"),
    pytest.mark.skipif(not DEB, reason="no build/dist/*.deb (make deb)"),
]


class Bare(Machine):
    """Without anything of the checkout."""

    @override
    def provide(self) -> None:
        for name in ("now.deb", "next.deb"):
            target = self.files / "srv" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / name, target)


class Packed(UnitFleet):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.machine = Bare(folder)
        shutil.copy(DEB[0], folder / "now.deb")
        tree = folder / "tree"
        subprocess.run(["dpkg-deb", "-R", str(DEB[0]), str(tree)], check=True)
        control = tree / "DEBIAN" / "control"
        text = control.read_text()
        old = f"Version: {__version__}\n"
        assert old in text
        control.write_text(text.replace(old, "Version: 99.0\n"))
        build = [
            "dpkg-deb",
            "--root-owner-group",
            "-Znone",
            "-b",
            str(tree),
            str(folder / "next.deb"),
        ]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)

    @override
    def boot(self) -> None:
        self.settings()
        self.machine.boot()

    def dpkg(self, *words: str) -> str:
        return self.machine.run("dpkg", *words, timeout_s=120)

    def active(self) -> list[str]:
        return [u for u in UNITS if self.machine.show(u, "ActiveState") == "active"]

    def alive(self, pids: dict[str, int]) -> bool:
        return all(self.machine.run("test", "-d", f"/proc/{p}") == "" for p in pids.values())


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packed]:
    fleet = Packed(tmp_path_factory.mktemp("deb"))
    try:
        fleet.boot()
        yield fleet
    finally:
        fleet.close()


def test_its_life(box: Packed) -> None:
    """Install starts nothing; an upgrade restarts nothing and says what would; remove and purge end no engine."""
    said = box.dpkg("-i", "/srv/now.deb")
    assert "restart" not in said
    assert box.active() == []
    box.machine.ctl("start", *UNITS)
    engines = box.whole()
    _gateway_owns_no_code(box)

    before = {unit: box.machine.main_pid(unit) for unit in UNITS}
    spawned = box.gateways()
    with box.load(box.front) as load:
        said = box.dpkg("-i", "/srv/next.deb")
        assert "systemctl restart llmgw-control llmgw-agent llmgw-gateway" in said, said
        assert {unit: box.machine.main_pid(unit) for unit in UNITS} == before
        assert {box.machine.show(unit, "NRestarts") for unit in UNITS} == {"0"}
        assert (box.engines(), box.gateways()) == (engines, spawned)
        assert box.machine.run("dpkg-query", "-W", "llmgw").strip().endswith("99.0")
        box.machine.run("dpkg", "--verify", "llmgw")
        box.machine.ctl("restart", *UNITS)  # the line it printed
        assert box.whole() == engines
    assert not load.failed

    said = box.dpkg("-r", "llmgw")
    assert "engines keep running" in said
    assert box.active() == []
    assert box.alive(engines)
    wait_for(lambda: not box.gateways(), "the end of control's gateway", 20)
    said = box.dpkg("-P", "llmgw")
    assert "/var/lib/llmgw is kept" in said
    assert box.machine.run("ls", "/var/lib/llmgw/control/inventory.db")
    assert "No such file" in box.machine.run("ls", "-d", "/var/cache/llmgw", check=False)
    assert box.alive(engines)

    box.dpkg("-i", "/srv/next.deb")
    box.machine.ctl("start", *UNITS)
    assert box.whole() == engines


def _gateway_owns_no_code(box: Packed) -> None:
    """What root runs is root's: a gateway of its own has another user, and unpacks the program for itself."""
    of_others = box.machine.run(
        "find",
        "-L",
        "/var/cache/llmgw",
        "!",
        "-user",
        "root",
        "-o",
        "-perm",
        "/022",
        "!",
        "-type",
        "l",
    )
    assert not of_others
    assert (
        box.machine.run("stat", "-L", "-c", "%U", "/var/cache/llmgw-gateway").strip()
        == "llmgw-gateway"
    )
