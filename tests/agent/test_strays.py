"""What cannot be ended is held, shown, and freed by an operator's word alone (A43, F67); then it is a stranger.

Real agents, engines and ports. Engines here are deaf to every signal, for no test can have a process in D state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.core.types.catalog import Restart, Stop
from tests.agent.cards import GIB, UUIDS, Cards
from tests.agent.rig import Rig, alive, gpu_users

DEAF = {"deaf": True, "kill_wait_s": 0.3, "beat_s": 0.25}
QUICK = Stop(grace_s=0.1)


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, world=DEAF)
    yield rig
    rig.close()


def stuck(rig: Rig, n: int = 1) -> str:
    """What is said of an engine that KILL does not end."""
    shard = f"alpha-{n}/0"

    def said() -> str:
        error = (rig.control.shards.get(shard) or {}).get("error") or ""
        return error if error.startswith("stuck: ") else ""

    return str(rig.control.wait(said, "stuck"))


def test_what_does_not_die_is_held_until_an_operator_releases_it(deaf: Rig) -> None:
    """A43, F67: never "stopped" by itself; by hand it is, with its pid named; it is not signalled and not taken up."""
    rig = deaf.start_agent().registered()
    shard = rig.ready(stop=QUICK)
    rig.stop()
    said = stuck(rig)
    assert f"pids {shard['pid']} are still there" in said
    assert "llmgw stop --force alpha-1/0" in said
    assert rig.control.shards["alpha-1/0"]["state"] == "stopping"
    rig.start(2, port=shard["port"])
    assert rig.control.refusal("port_held")["resource"] == f"port {shard['port']}"
    rig.forget()
    assert "is stopping here" in rig.control.refusal("still_running")["why"]
    rig.kill9().again()
    assert rig.control.shards["alpha-1/0"]["state"] == "stopping"
    rig.stop(force=True)
    ended = rig.control.shard("alpha-1/0", "stopped")
    assert ended["error"] == f"released by hand: pids {shard['pid']} may still be there"
    assert (ended["pid"], alive(shard["pid"])) == (None, True)
    rig.start(3, port=shard["port"])  # held by nobody of ours now, and in use all the same
    assert f"pid {shard['pid']} " in rig.control.refusal("port_in_use")["why"]
    rig.forget()
    rig.control.wait(lambda: ["alpha-1/0", "inc-1"] in rig.control.gone, "gone")
    rig.kill9().again()
    assert rig.control.registers[-1]["shards"] == []  # its markers are there, and it is nobody's
    assert rig.engine_pids() == [shard["pid"]]


def test_force_on_a_running_engine_ends_it_as_any_stop(rig: Rig) -> None:
    """TERM, KILL, seen gone: nothing is released that can be ended."""
    rig.start_agent().registered()
    shard = rig.ready(1, "--ignore-term", stop=Stop(grace_s=600.0))
    rig.stop(force=True)
    assert rig.control.shard("alpha-1/0", "stopped")["error"] is None
    assert not alive(shard["pid"])
    assert not rig.record()["force"]


def test_the_gpu_use_of_a_released_one_is_a_strangers(tmp_path: Path, cards: Cards) -> None:
    """A43, A70: held while it is stuck; then subtracted as foreign, also by the next agent."""
    rig = Rig(tmp_path, world=DEAF, gpus="auto").start_agent(**cards.env).registered()
    try:
        pid = rig.ready(gpus=UUIDS[:1], stop=QUICK, restart=Restart(max=0))["pid"]
        cards.use(0, 9 * GIB, (pid, 9 * GIB))
        rig.stop()
        stuck(rig)
        rig.start(2, gpus=UUIDS[:1])
        assert "alpha-1/0 (inc-1" in rig.control.refusal("gpu_held")["why"]
        assert not any(gpu_users(e) for e in rig.control.events)
        rig.stop(force=True)
        rig.control.shard("alpha-1/0", "stopped")

        def foreign() -> bool:
            said = gpu_users(rig.control.events[-1]) if rig.control.events else []
            return [(f["pid"], f["gpu"], f["memory"]) for f in said] == [(pid, UUIDS[0], 9 * GIB)]

        rig.control.wait(foreign, "it as a stranger")
        rig.control.refused.clear()
        rig.start(3, gpus=UUIDS[:1])
        why = rig.control.refusal("gpu_held")["why"]
        assert f"pid {pid} (" in why
        assert "alpha-1/0" not in why
        rig.forget()
        rig.control.wait(lambda: rig.control.gone, "gone")
        rig.kill9().start_agent(**cards.env).registered(2)
        assert rig.control.registers[-1]["shards"] == []
        assert [f["pid"] for f in gpu_users(rig.control.registers[-1])] == [pid]
    finally:
        rig.close()
