"""A real llama.cpp group over two network namespaces, and a link that is cut: alive, deaf, `/health` 200 (F61, F64).

All parts are the real ones, but for their patience: `HASTE` makes seconds of what takes minutes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typing_extensions import override

from scripts.fleet import wait_for
from scripts.ports import free_port
from tests import beds
from tests.e2e.conftest import write_catalog
from tests.e2e.netns import Wires, wired
from tests.e2e.test_groups import pids
from tests.e2e.test_rpc_group import Json, RpcFleet, programs, rpc_model, said
from tests.engines import llama

pytestmark = [pytest.mark.netns, pytest.mark.e2e, beds.needs("ip")]
HUNG_S = 6.0
HASTE = f"""
import runpy, llmgw.agent.probe, llmgw.core.hung, llmgw.core.supervise.health
llmgw.agent.probe.TOKEN_TIMEOUT_S = llmgw.core.supervise.health.TOKEN_S = 1.5
llmgw.core.hung.HUNG_S, llmgw.core.hung.TOKEN_S = {HUNG_S}, 1.5
runpy.run_module("llmgw", run_name="__main__", alter_sys=True)
"""
QUICK = {
    # A request that hangs keeps one of its threads for HTTP, and /health needs one too.
    "args": ["-ngl", 99, *llama.FLAGS, "--threads-http", 32],
    "fabric": "ib0",
    "ready": {"token": True, "failures": 1, "of": 1},
    "drain_timeout": "1s",
    "stop": {"signal": "TERM", "grace": "1s"},
}


class Apart(RpcFleet):
    """Control here, an agent in each namespace."""

    wires: Wires

    @override
    def words(self, part: str) -> list[str]:
        words = super().words(part)
        return [*words, "--listen", f"0.0.0.0:{self.port}"] if part == "control" else words

    @property
    def port(self) -> str:
        return self.urls["control"].rpartition(":")[2]

    def box(self, name: str) -> None:
        low, high = self.ports
        self.more[name] = [
            *("agent", "--node", name, "--state-dir", str(self.folder / name), "--gpus", "none"),
            *("--ports", f"{low}-{high}", "--listen", f"127.0.0.1:{free_port()}"),
            *("--control", f"http://{self.wires.here(name)}:{self.port}"),
            *("--address", self.wires.address(name), "--fabric", f"ib0={self.wires.fabric(name)}"),
        ]

    @override
    def start(self, *parts: str) -> None:
        for part in parts:
            inside = [] if part == "control" else self.wires.inside(part)
            with self.log(part).open("ab") as file:
                self.processes[part] = subprocess.Popen(
                    [*inside, sys.executable, "-c", HASTE, *self.words(part)],
                    env=self.env | {"LLMGW_INSECURE": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )

    def row(self) -> Json:
        found: Json = next(iter((self.status() or {"replicas": []})["replicas"]), {})
        return found

    def events(self) -> list[Json]:
        url = f"{self.urls['control']}/api/v1/events?after=0"
        found: list[Json] = self.http.get(url).raise_for_status().json()["events"]
        return found

    def kinds(self) -> set[str]:
        return {e["kind"] for e in self.events()}

    def health(self) -> int:
        """What rank 0 itself says."""
        url = f"{self.row()['endpoint']}/health"
        return httpx.get(url, timeout=5, trust_env=False).status_code


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Apart]:
    found = programs()
    with wired() as wires:
        catalog = write_catalog(tmp_path / "catalog.yaml", {"deep": rpc_model(**QUICK)})
        made = Apart(tmp_path, catalog)
        made.programs, made.wires = found, wires
        made.box("box1")
        made.box("box2")
        try:
            yield made
        finally:
            made.close()


def up(fleet: Apart) -> Json:
    fleet.start("control", "box1", "box2")
    first = fleet.ready("deep")
    fleet.served("deep")
    assert said(fleet) == " hello from deep."
    return first


def hangs(fleet: Apart) -> None:
    """The chat does, while `/health` is 200."""
    with pytest.raises(httpx.TimeoutException):
        said(fleet, timeout_s=1.0)
    assert fleet.health() == httpx.codes.OK


def lead_is(fleet: Apart, state: str) -> bool:
    shards: list[dict[str, Any]] = fleet.row().get("shards", [])
    return any(s["state"] == state for s in shards if s["shard"].endswith("/0"))


def test_f64_the_link_between_the_ranks_is_cut_and_the_group_is_replaced(fleet: Apart) -> None:
    first = up(fleet)
    before = set(pids(fleet).values())
    fleet.wires.cut("fabric")
    hangs(fleet)
    wait_for(lambda: lead_is(fleet, "unhealthy"), "rank 0 unhealthy", 20.0)
    wait_for(lambda: not set(pids(fleet).values()) & before, "the end of the hung group", 40.0)
    (why,) = [e["why"] for e in fleet.events() if e["kind"] == "drain"]
    assert "is alive and has answered nobody for" in why

    def waits() -> bool:
        shards = [s for r in (fleet.status() or {"replicas": []})["replicas"] for s in r["shards"]]
        return any("waits for its workers: rank 1" in (s["error"] or "") for s in shards)

    wait_for(waits, "a new leader that waits for its worker", 20.0)
    fleet.wires.heal("fabric")
    second = fleet.ready("deep", 60.0)
    assert second["replica"] != first["replica"]
    fleet.served("deep")
    assert said(fleet) == " hello from deep."


def test_f61_f64_with_a_silent_node_the_group_is_held_and_recovers_with_the_network(
    fleet: Apart,
) -> None:
    """Unreachable is not dead: its rank holds what it has, and the head is not ended for it."""
    first = up(fleet)
    before = pids(fleet)
    fleet.wires.cut("uplink")
    wait_for(lambda: "node_silent" in fleet.kinds(), "box2 silent", 30.0)
    fleet.wires.cut("fabric")
    hangs(fleet)
    wait_for(lambda: lead_is(fleet, "unhealthy"), "rank 0 unhealthy", 20.0)
    wait_for(lambda: fleet.row()["state"] == "degraded", "the group is degraded", 5.0)
    time.sleep(HUNG_S + 4.0)  # it would have been given up by now
    assert (fleet.row()["replica"], fleet.row()["state"]) == (first["replica"], "degraded")
    assert pids(fleet) == before
    assert "drain" not in fleet.kinds()
    fleet.wires.heal("fabric")
    wait_for(lambda: lead_is(fleet, "ready"), "rank 0 well again, its partner still silent", 60.0)
    fleet.wires.heal("uplink")
    again = fleet.ready("deep", 60.0)
    assert (again["replica"], pids(fleet)) == (first["replica"], before)
    fleet.served("deep")
    assert said(fleet) == " hello from deep."
