"""A leader that waits for its workers (`start_order: workers_first`), and a worker that is up once it listens."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core.types.messages import Peer, Start
from llmgw.core.types.node import (
    DeleteRecord,
    Exited,
    Identified,
    Knock,
    Knocked,
    Probe,
    Probed,
    Spawn,
    Spawned,
    TreeSeen,
    WriteRecord,
)
from llmgw.core.types.record import Key
from tests.core.agent_bench import KEY, Bench, start

WORKER: Key = ("alpha-1/1", "inc-1")
PEERS = (
    Peer(rank=0, node="box1", address="10.0.0.1", port=18001),
    Peer(rank=1, node="box2", address="10.0.0.2", fabric_address="10.1.0.2", port=18001),
)
REFUSED = "rank 1 on box2 at 10.1.0.2:18001: connection refused"


def leader(**changes: Any) -> Start:
    return start(world_size=2, peers=PEERS, start_order="workers_first", **changes)


def worker(**changes: Any) -> Start:
    return start(shard="alpha-1/1", rank=1, world_size=2, health="tcp", **changes)


def knocked(b: Bench, *missing: str, after_s: float = 0.02, attempt: int = 1) -> Bench:
    return b(Knocked(key=KEY, attempt=attempt, missing=missing), after_s)


def spawns(b: Bench) -> int:
    return sum(isinstance(e, Spawn) for e in b.log)


# ---------------------------------------------------------------- the leader


def test_it_is_journaled_at_once_and_spawned_when_every_worker_listens() -> None:
    b = Bench().command(leader())
    assert [type(e) for e in b.effects][:2] == [WriteRecord, Knock]
    assert (b.record.state, spawns(b)) == ("pending", 0)
    knocked(b, REFUSED)
    assert b.record.error == f"waits for its workers: {REFUSED}"
    assert not b.of(Knock)
    assert b.tick(0.05).of(Knock)
    knocked(b)
    assert not b.record.error
    assert (b.record.intent, spawns(b)) == (True, 1)
    b.spawned().tick(0.1).probe()
    assert b.record.state == "ready"


def test_one_knock_at_a_time_and_ever_more_patiently() -> None:
    b = Bench().command(leader())
    assert not b.tick(5.0).of(Knock)
    knocked(b, REFUSED)
    assert b.due() == pytest.approx(0.502)  # a tenth of the time so far
    knocked(b, REFUSED, after_s=90.0)
    assert b.due() == pytest.approx(2.0)


def test_it_gives_up_after_its_start_timeout_and_says_whom_it_waited_for() -> None:
    """A34: not a moment later, for its workers hold their nodes' memory."""
    b = Bench().command(leader(start_timeout_s=60.0))
    knocked(b, REFUSED)
    b.tick(61.0)
    assert (b.record.state, spawns(b)) == ("failed", 0)
    assert b.record.error == f"not started in 60 s: waits for its workers: {REFUSED}"


def test_it_gives_up_also_where_no_knock_is_answered() -> None:
    b = Bench().command(leader(start_timeout_s=60.0)).tick(60.0)
    assert b.record.error == "not started in 60 s: its workers do not answer"


def test_a_restart_of_its_agent_in_between_changes_nothing() -> None:
    b = Bench().command(leader())
    knocked(b, REFUSED)
    again = b.restarted(heard=True).identified()
    assert (again.record.state, spawns(again)) == ("pending", 0)
    again.tick()
    assert again.of(Knock)
    knocked(again)
    assert spawns(again) == 1


def test_late_answers_start_nothing() -> None:
    """A stop that came in between is obeyed at once: nothing runs."""
    b = Bench().command(leader())
    knocked(b, attempt=2)
    assert spawns(b) == 0
    b.stop()
    assert b.record.state == "stopped"
    knocked(b)
    assert (b.record.state, spawns(b)) == ("stopped", 0)
    assert b.forget().of(DeleteRecord)


def test_a_drained_one_is_not_started() -> None:
    b = Bench().command(leader()).drain()
    knocked(b)
    assert (b.record.state, spawns(b)) == ("stopped", 0)


def test_an_order_that_nobody_knows_is_refused() -> None:
    b = Bench().command(leader(), control="http://c1:8801")
    assert not b.of(DeleteRecord)
    b = Bench().command(start(start_order="leader_first"))
    assert b.refusal()[0] == "bad_command"


# ---------------------------------------------------------------- a worker


def test_a_worker_is_up_once_it_listens_and_is_not_asked_again() -> None:
    """An RPC server takes one client at a time: a probe beside the head would wait in the queue (engines.md 5)."""
    b = Bench().command(worker())
    b.spawned(WORKER).tick(0.1)
    assert b.one(Probe).check
    b(Probed(key=WORKER, attempt=1, outcome="refused", detail="nothing listens on its port"))
    assert b.state.records[WORKER].state == "starting"
    b.tick(0.1)
    b(Probed(key=WORKER, attempt=1, outcome="ok", owner="ours"))
    assert b.state.records[WORKER].state == "ready"
    assert not b.tick(60.0).of(Probe)
    assert b.due() == float("inf")


def test_a_worker_that_never_listens_fails_in_its_time() -> None:
    b = Bench().command(worker(start_timeout_s=30.0))
    b.spawned(WORKER).tick(0.1)
    b(Probed(key=WORKER, attempt=1, outcome="refused", detail="nothing listens on its port"))
    b.tick(31.0)
    assert b.state.records[WORKER].error == (
        "not ready after 30 s without progress; last probe: nothing listens on its port"
    )


def test_rank_0_cannot_be_without_http() -> None:
    assert Bench().command(start(health="tcp", world_size=2)).refusal()[0] == "bad_command"


def test_a34_f77_a_worker_is_not_restarted_alone() -> None:
    b = Bench().command(worker())
    b.spawned(WORKER).tick(0.1)
    b(Probed(key=WORKER, attempt=1, outcome="ok", owner="ours"))
    b(Exited(key=WORKER, attempt=1, code=-9))
    b(TreeSeen(key=WORKER, attempt=1)).tick(60.0)
    assert (b.state.records[WORKER].state, spawns(b)) == ("failed", 1)


def test_f46_one_found_again_that_listens_late_is_still_asked() -> None:
    """It became unhealthy for being late; when it listens it is well, and its group need not end."""
    key = WORKER
    b = Bench().command(worker(start_timeout_s=60.0))
    b(Spawned(key=key, attempt=1, pid=4711, start_ticks=99))
    after = b.restarted()
    after(Identified(key=key, leader="same"))
    after.tick(61.0)
    assert after.state.records[key].state == "unhealthy"
    answers = (
        Probed(key=key, attempt=1, outcome="refused"),
        Probed(key=key, attempt=1, outcome="ok", owner="ours"),
    )
    for answer, state in zip(answers, ("unhealthy", "ready"), strict=True):
        after.tick(10.0)
        assert after.of(Probe) or after.state.records[key].watch.probing
        after(answer)
        assert after.state.records[key].state == state
