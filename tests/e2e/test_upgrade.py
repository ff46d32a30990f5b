"""The release before and this one side by side: control, agent and gateway change one after another, under load (F55).

Both ways, with UPGRADE_LONG=1 in both orders; after each step what was replaced decides something, no engine was
restarted, and no request for a loaded model has failed. What cannot work says so: an older control does not write a
newer inventory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from llmgw import __version__, handover
from llmgw.errors import LlmgwError
from scripts.fleet import wait_for
from tests.e2e import previous
from tests.e2e.conftest import fake, model, write_catalog
from tests.e2e.test_standby import Pair, under_load

pytestmark = pytest.mark.e2e
LONG = bool(os.environ.get("UPGRADE_LONG"))
ORDERS = [("control", "agent"), ("agent", "control")]
OLD, NEW = previous.VERSION, __version__
DEFAULTS = {"drain_timeout": "0.2s", "stop": {"signal": "TERM", "grace": "0.2s"}}


class Mixed(Pair):
    """Each part at a version of its own."""

    def __init__(self, folder: Path, catalog: Path) -> None:
        super().__init__(folder, catalog)
        self.sources = {OLD: previous.sources(), NEW: previous.ROOT}
        self.versions = {"control": OLD, "agent": OLD}
        self.more["agent"] = ["--control", self.urls["control"]]
        self.file = self.inventory

    @override
    def words(self, part: str) -> list[str]:
        words = [w for w in super().words(part) if w != "--standby"]
        return [*words, "--inventory", str(self.file)] if part == "control" else words

    @override
    def start(self, *parts: str) -> None:
        for part in parts:
            source = self.sources[self.versions[part]]
            with self.log(part).open("ab") as log:
                self.processes[part] = subprocess.Popen(
                    [sys.executable, "-m", "llmgw", *self.words(part)],
                    env=self.env | {"PYTHONPATH": str(source)},
                    cwd=self.folder,  # -m looks there first
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def change(self, part: str, version: str) -> None:
        """As a service manager does it."""
        self.versions[part] = version
        life = self.life(part)
        self.processes[part].terminate()
        self.processes.pop(part).wait()
        self.start(part)
        wait_for(lambda: self.life(part) not in (None, life), f"{part} {version} answers")

    def gateway_version(self) -> str:
        try:
            return handover.hello(self.folder / "control" / "gateway").version
        except LlmgwError:
            return ""

    def whole(self) -> None:
        self.ready("alpha")
        self.served("alpha")
        (node,) = (self.status() or {})["nodes"]
        assert node["version"] == self.versions["agent"]
        wait_for(lambda: self.gateway_version() == self.versions["control"], "the gateway too")

    @override
    def decides(self) -> None:
        """A request wakes what is on demand; an operator ends it."""
        self.ask("nap").raise_for_status()
        assert any(s.startswith("nap-") for s in self.engines().values())
        url = f"{self.urls['control']}/api/v1/models/nap/stop"
        self.http.post(url, json={}).raise_for_status()
        wait_for(lambda: not any(s.startswith("nap-") for s in self.engines().values()), "its end")


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    nap = model(fake("--alias", "nap"), least=0, **DEFAULTS)
    models = {"alpha": model(fake("--alias", "alpha")), "nap": nap}
    made = Mixed(tmp_path, write_catalog(tmp_path / "catalog.yaml", models))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("order", ORDERS if LONG else ORDERS[:1])
def test_f55_an_upgrade_and_the_way_back_restart_nothing(
    mixed: Mixed, order: tuple[str, str]
) -> None:
    mixed.start("control", "agent")
    mixed.whole()
    before = mixed.engines()
    with under_load(mixed):
        for version in (NEW, OLD):
            for part in order:
                if (part, version) == ("control", OLD):
                    refused(mixed)
                mixed.change(part, version)
                mixed.whole()
                mixed.decides()
                assert mixed.engines() == before
                assert mixed.versions[part] == version


def refused(mixed: Mixed) -> None:
    """An older control reads no newer inventory: it says so and ends or decides nothing; another file serves it."""
    file, mixed.versions["control"] = mixed.file, OLD
    mixed.processes["control"].terminate()
    mixed.processes.pop("control").wait()
    mixed.start("control")
    said = "was written by a newer llmgw"
    wait_for(lambda: said in mixed.log("control").read_text(), "it says so")
    time.sleep(0.5)
    if mixed.processes["control"].poll() is None:
        assert said in (mixed.status() or {})["blocked"]
    else:
        mixed.start("control")
    mixed.file = file.with_name("older.db")
