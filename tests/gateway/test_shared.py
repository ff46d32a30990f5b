"""Limits of replicas and queues hold over all workers of one gateway, and who waits in any of them has his turn."""

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.core.types.routes import RouteReplica, RouteTable
from llmgw.gateway.balance import Fleet, Target
from llmgw.gateway.common import ALIVE_S, Common, Row
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.shared import SharedEndpoint, SharedTarget, share
from tests.gateway.peers import Client, Talk
from tests.gateway.rig import loaded, run, table
from tests.gateway.test_common import gateway
from tests.gateway.test_main import client
from tests.gateway.test_workers import family

E1 = RouteReplica(replica="e1", endpoint="http://127.0.0.1:18001")
E2 = RouteReplica(replica="e2", endpoint="http://127.0.0.1:18002")


class Waiting:
    """A request as a target sees it."""

    prefix: int | None = None

    def __init__(self, who: str = "a") -> None:
        self.who = who
        self.got: Endpoint | None = None

    @property
    def served(self) -> bool:
        return self.got is not None

    def assign(self, endpoint: Endpoint) -> None:
        endpoint.in_flight += 1
        self.got = endpoint

    def tick(self, now: float) -> None: ...


def workers(routes: RouteTable, count: int = 2) -> list[tuple[SharedTarget, Common]]:
    found = []
    for common in gateway(count):
        fleet = Fleet()
        share(fleet, common)
        common.alive(0.0)
        fleet.apply(routes, 0.0)
        target = fleet.targets["m"]
        assert isinstance(target, SharedTarget)
        found.append((target, common))
    return found


def take(target: Target, now: float = 0.0) -> Endpoint | None:
    found = target.choose(now)
    if found is not None:
        found.in_flight += 1
    return found


def test_a_replica_has_no_more_in_flight_than_it_may_have_in_one_process() -> None:
    (a, _), (b, _) = workers(table(m=loaded(E1, max_in_flight=2)))
    one, other = take(a), take(b)
    assert one is not None
    assert other is not None
    assert take(a) is None
    assert take(b) is None
    one.left(0.0)
    again = take(b)
    assert again is other
    assert take(a) is None


def test_with_several_replicas_the_one_that_has_room_is_taken() -> None:
    (a, _), (b, _) = workers(table(m=loaded(E1, E2, max_in_flight=1)))
    first, second = take(a), take(b)
    assert first is not None
    assert second is not None
    assert first.replica != second.replica
    assert take(a) is None
    assert take(b) is None


def test_of_two_workers_that_choose_at_the_same_moment_one_gets_the_last_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have looked and found room; then one takes it, then the other comes to its choice."""
    (a, _), (b, _) = workers(table(m=loaded(E1, max_in_flight=1)))
    got: list[Endpoint | None] = []
    plain = Target.choose

    def choose(self: Target, *args: Any) -> Endpoint | None:
        if self is a and not got:
            got.append(take(b))
        return plain(self, *args)

    monkeypatch.setattr(Target, "choose", choose)
    got.append(take(a))
    assert [e is not None for e in got] == [True, False]
    assert got[0] is not None
    got[0].left(0.0)
    assert take(a)


def test_of_two_that_asked_before_either_looked_one_gets_the_last_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no queue both were refused, and the place stayed free."""
    (a, _), (b, _) = workers(table(m=loaded(E1, max_in_flight=1)))
    (its,) = b.endpoints
    assert isinstance(its, SharedEndpoint)
    plain, said = Row.ask, list[bool | None]()

    def ask(self: Row, count: int) -> None:
        plain(self, count)
        plain(its.row, 1)

    monkeypatch.setattr(Row, "ask", ask)

    def looks() -> None:
        said.append(its.row.answer(1, 0.0))
        its.row.put(int(bool(said[-1])))

    monkeypatch.setattr(os, "sched_yield", looks)
    first = take(a)
    assert first is not None
    assert said == [False]
    assert take(b) is None
    monkeypatch.undo()
    first.left(0.0)
    assert take(b) is its


def test_the_queue_is_one_queue() -> None:
    (a, _), (b, _) = workers(table(m=loaded(E1, max_in_flight=1, queue=3)))
    assert take(a)
    b.waiting.add(Waiting())
    assert take(b) is None  # it looks, and sees the time
    assert a.choose(0.0) is None
    assert (a.room, b.room) == (2, 3)


def test_who_waits_elsewhere_was_here_before() -> None:
    (a, _), (b, _) = workers(table(m=loaded(E1, max_in_flight=1)))
    mine = take(a)
    assert mine is not None
    waits = Waiting()
    b.waiting.add(waits)
    mine.left(0.0)
    assert a.choose(0.0) is None
    b.look(0.0)
    assert waits.got is not None
    waits.got.left(0.0)
    assert take(a)


def test_of_two_that_wait_each_has_a_turn() -> None:
    (a, _), (b, _) = workers(table(m=loaded(E1, max_in_flight=1)))
    ours, theirs = Waiting(), Waiting()
    a.waiting.add(ours)
    b.waiting.add(theirs)
    a.pump(0.0)
    assert (ours.served, theirs.served) == (False, False)
    a.look(0.0)
    b.look(0.0)
    assert (ours.served, theirs.served) == (True, False)
    assert ours.got is not None
    ours.got.left(0.0)
    b.look(0.0)
    assert theirs.served


@pytest.mark.parametrize("what", ["in flight", "waiting"])
def test_a_worker_that_is_gone_holds_nothing(what: str) -> None:
    (a, ours), (b, _) = workers(table(m=loaded(E1, max_in_flight=1)))
    if what == "waiting":
        b.waiting.add(Waiting())
    else:
        assert take(b)
    assert a.choose(1.0) is None
    ours.alive(ALIVE_S)
    assert a.choose(ALIVE_S)


def test_an_engine_at_the_address_of_another_begins_at_nothing() -> None:
    """The port was given to another replica while requests to the old one still waited for a host that is gone."""
    old = replace(E1, incarnation="i1")
    fleets = []
    for common in gateway(2):
        fleet = Fleet()
        share(fleet, common)
        common.alive(0.0)
        fleet.apply(table(1, m=loaded(old, max_in_flight=2)), 0.0)
        fleets.append(fleet)
    a, b = fleets
    held = [take(a.targets["m"]), take(a.targets["m"])]
    assert take(b.targets["m"]) is None
    new = replace(old, replica="e9", incarnation="i2")
    for fleet in fleets:
        fleet.apply(table(2, m=loaded(new, max_in_flight=2)), 0.0)
    first, second = take(a.targets["m"]), take(b.targets["m"])
    assert first is not None
    assert second is not None
    for endpoint in held:  # what the old one had says nothing of the new one
        assert endpoint is not None
        endpoint.left(0.0)
    assert take(b.targets["m"]) is None
    first.left(0.0)
    assert take(b.targets["m"]) is second


def test_a_replica_that_comes_back_has_what_it_had() -> None:
    """Out of one table and in the next: its requests went on all the while, and fill its places."""
    route = loaded(replace(E1, incarnation="i1"), max_in_flight=1)
    for fleet in (Fleet(), shared_fleet()):
        fleet.apply(table(1, m=route), 0.0)
        held = take(fleet.targets["m"])
        assert held is not None
        fleet.apply(table(2), 0.0)
        assert list(fleet.retired) == [held]
        fleet.apply(table(3, m=route), 0.0)
        assert not fleet.retired
        assert not held.gone
        assert take(fleet.targets["m"]) is None
        held.left(0.0)
        assert take(fleet.targets["m"]) is held


def shared_fleet() -> Fleet:
    (common,) = gateway(1)
    fleet = Fleet()
    share(fleet, common)
    return fleet


async def some_on_each(port: int, stack: contextlib.AsyncExitStack) -> list[Client]:
    """Connections, ten at least to each of two workers: the kernel gives them out as it likes."""
    found: dict[str, list[Client]] = {}
    while len(found) < 2 or min(map(len, found.values())) < 10:
        c = await stack.enter_async_context(client(port))
        name = (await c.get("/healthz")).json["gateway"]
        found.setdefault(name, []).append(c)
    return [c for lines in found.values() for c in lines[:20]]


def test_over_real_workers_an_engine_that_takes_one_gets_one(tmp_path: Path) -> None:
    """Twenty requests and more over two workers: never two at a time at the engine, and all are served."""
    now = most = 0

    async def counts(talk: Talk) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        await talk.json({"asked": json.loads(talk.asked.body)})

    async def scenario() -> None:
        async with family(tmp_path) as (w, _), contextlib.AsyncExitStack() as stack:
            w.engine.script = counts
            before: Any = w.control.table
            route = replace(before.models["m"], max_in_flight=1)
            await w.control.publish(
                replace(before, version=before.version + 1, models={"m": route})
            )
            for _ in range(2):
                await w.control.demand(table=before.version + 1)
            lines = await some_on_each(w.port, stack)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(c.ask({"model": "m"})) for c in lines]
            assert {t.result().status for t in tasks} == {200}
            assert most == 1

    run(scenario())
