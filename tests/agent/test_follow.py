"""A start that came with the stop that makes its room (A64): real agent, real engines, a control that says both.

The port of the one that ends is what the other asks for: it cannot have it a moment before.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmgw.core.types.catalog import Stop
from scripts.ports import free_port
from tests.agent.rig import Rig, alive, until
from tests.agent.test_loop import STUBBORN, deaf

AFTER = (("alpha-1/0", "inc-1"),)
AHEAD = "alpha-2@0@inc-2.json.new"


def ahead(rig: Rig) -> set[str]:
    return {p.name for p in rig.record_path(2).parent.glob("*.new")}


def written_ahead(rig: Rig, n: int) -> dict[str, Any]:
    path = rig.record_path(n)
    path = path.with_name(f"{path.name}.new")
    text = path.read_text() if path.exists() else ""
    return dict(json.loads(text)) if text else {}


def swapped(rig: Rig, grace_s: float = 0.5) -> int:
    """The first one runs and is told to end, and the second to come after it; the pid of the first."""
    port = free_port()
    rig.start(1, command=STUBBORN, stop=Stop(grace_s=grace_s), port=port)
    pid = deaf(rig)
    rig.stop(1)
    rig.start(2, port=port, after=AFTER)
    return pid


def test_it_starts_once_the_other_has_ended_and_not_before(rig: Rig) -> None:
    rig.start_agent().registered()
    pid = swapped(rig)
    shard = rig.control.shard("alpha-2/0", "ready")
    assert not alive(pid)
    assert alive(shard["pid"])
    assert rig.control.refused == []
    assert not rig.record(2)["start"].get("after")


def test_one_that_follows_nobody_here_starts_at_once(rig: Rig) -> None:
    rig.start_agent().registered()
    rig.start(2, after=(("alpha-9/0", "inc-9"),))
    rig.control.shard("alpha-2/0", "ready")


def test_what_it_was_to_follow_is_not_stopped_so_the_usual_no(rig: Rig) -> None:
    rig.start_agent().registered()
    port = free_port()
    rig.ready(1, port=port)
    rig.start(2, port=port, after=AFTER)
    rig.control.wait(lambda: rig.control.refused, "a refusal")
    assert rig.control.refused[0]["reason"] == "port_held"


def test_a_stop_of_it_takes_its_place(rig: Rig) -> None:
    rig.start_agent().registered()
    swapped(rig)
    rig.stop(2)
    rig.control.wait(lambda: ["alpha-2/0", "inc-2"] in rig.control.gone, "gone")
    rig.control.shard("alpha-1/0", "stopped")
    rig.start(3)
    rig.control.shard("alpha-3/0", "ready")
    assert not rig.record_path(2).exists()


@pytest.mark.parametrize("point", ["start-kept", "start-due", "before-WriteRecord-intent:2"])
def test_killed_while_it_is_kept_back_nothing_of_it_is_left(rig: Rig, point: str) -> None:
    """As of an order that was still on its way: the next agent knows the one that ends, and nobody else."""
    rig.start_agent(crash_at=point).registered()
    pid = swapped(rig)
    rig.crashed()
    assert ahead(rig) == {AHEAD}
    rig.again()
    there = [s["shard"] for s in rig.control.registers[-1]["shards"]]
    assert (there, ahead(rig)) == (["alpha-1/0"], set())
    rig.control.shard("alpha-1/0", "stopped")
    assert not alive(pid)
    rig.start(2)
    assert rig.control.shard("alpha-2/0", "ready")["attempt"] == 1
    assert rig.starts("alpha-2/0") == {1}


def test_its_intent_is_on_the_disk_beside_its_place_and_goes_with_the_order(rig: Rig) -> None:
    """P9: its own write is a name. Nothing is journaled by it; it is the very order, with the key that it will have."""
    rig.start_agent().registered()
    swapped(rig, grace_s=600.0)
    early = until(lambda: written_ahead(rig, 2), "its intent")
    assert (early["state"], early["intent"], early["attempt"]) == ("pending", True, 1)
    rig.stop(2)
    rig.control.wait(lambda: ["alpha-2/0", "inc-2"] in rig.control.gone, "gone")
    assert ahead(rig) == set()
    rig.start(3, port=free_port(), after=AFTER)
    early = until(lambda: written_ahead(rig, 3), "that of another")
    rig.stop(1, force=True)
    rig.control.shard("alpha-3/0", "ready")
    assert (rig.record(3)["api_key"], ahead(rig)) == (early["api_key"], set())


def test_killed_once_its_intent_is_written_it_is_known_and_starts_once(rig: Rig) -> None:
    rig.start_agent(crash_at="after-WriteRecord-intent:2").registered()
    swapped(rig)
    rig.crashed()
    rig.again()
    there = {s["shard"]: s for s in rig.control.registers[-1]["shards"]}
    assert set(there) == {"alpha-1/0", "alpha-2/0"}
    assert rig.starts("alpha-2/0") == set()
