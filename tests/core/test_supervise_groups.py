"""One rank of a replica over several nodes, as its agent sees it (A34, F77): no health of its own, no restart alone."""

from __future__ import annotations

from math import inf
from typing import Any

from msgspec.structs import replace

from llmgw.core.types.messages import Start
from llmgw.core.types.node import Exited, Probe, Spawn, TreeSeen
from llmgw.core.types.record import Key
from tests.core.agent_bench import Bench, start

WORKER: Key = ("alpha-1/1", "inc-1")


def worker(**changes: Any) -> Start:
    return start(shard="alpha-1/1", rank=1, world_size=2, health="", **changes)


def state_of(b: Bench) -> str:
    return b.state.records[WORKER].state


def test_a_worker_is_up_while_its_process_runs() -> None:
    b = Bench().command(worker())
    b.spawned(WORKER).tick()
    assert state_of(b) == "ready"
    assert not b.of(Probe)
    assert b.due() == inf


def test_a_worker_with_a_health_of_its_own_is_asked() -> None:
    b = Bench().command(replace(worker(), health="/health"))
    b.spawned(WORKER).tick(0.1)
    assert [e for e in b.log if isinstance(e, Probe)]
    assert state_of(b) == "starting"


def test_rank_0_always_has_a_health() -> None:
    b = Bench().command(start(health="", world_size=2))
    assert b.refusal()[0] == "bad_command"


def test_a34_f77_the_agent_never_restarts_one_rank_alone() -> None:
    b = Bench().command(worker())
    b.spawned(WORKER).tick()
    b(Exited(key=WORKER, attempt=1, code=1))
    b(TreeSeen(key=WORKER, attempt=1, alive=(), doubtful=()))
    b.tick(60.0)
    assert state_of(b) == "failed"
    assert len([e for e in b.log if isinstance(e, Spawn)]) == 1
