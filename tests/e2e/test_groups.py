"""A replica over two nodes, with real agents and engines: it comes up together and goes together (A26, A34, F77)."""

import os
import signal
from typing import Any

from scripts.fleet import Fleet, wait_for
from scripts.ports import free_port, free_range
from tests.e2e.conftest import Make, fake, model

Json = dict[str, Any]


def with_second_node(fleet: Fleet) -> Fleet:
    """A second agent on this machine: box2, with a folder and ports of its own."""
    ports = free_range()
    fleet.ranges.append(ports)
    fleet.more["box2"] = [
        *("agent", "--node", "box2", "--listen", f"127.0.0.1:{free_port()}", "--gpus", "none"),
        *("--ports", "{}-{}".format(*ports), "--state-dir", str(fleet.folder / "box2")),
    ]
    return fleet


def pids(fleet: Fleet) -> dict[str, int]:
    """The engines' leaders, by shard."""
    return {shard: pid for pid, shard in fleet.engines().items()}


def test_a34_one_rank_dies_and_the_group_starts_anew_together(make: Make) -> None:
    fleet = with_second_node(make({"deep": model(fake("--name", "deep"), nodes=2)}))
    fleet.start("control", "agent", "box2")
    first = fleet.ready("deep")
    assert (first["have"], first["want"]) == (2, 2)
    assert sorted(s["node"] for s in first["shards"]) == ["box1", "box2"]
    engines = pids(fleet)

    # A26: control forgets it all, and adopts the halves one by one
    fleet.kill("control")
    fleet.inventory.unlink()
    fleet.start("control")
    adopted = fleet.ready("deep")
    assert (adopted["replica"], pids(fleet)) == (first["replica"], engines)

    os.kill(engines[f"{first['replica']}/1"], signal.SIGKILL)

    def anew() -> Json | None:
        return next((r for r in fleet.replicas("deep") if r["replica"] != first["replica"]), None)

    second = wait_for(anew, "a new group", 60.0)
    assert (second["have"], second["want"]) == (2, 2)
    assert sorted(pids(fleet)) == [f"{second['replica']}/0", f"{second['replica']}/1"]
    assert not set(pids(fleet).values()) & set(engines.values())
