"""Limits of keys hold over all workers of one gateway, whatever becomes of one of them."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.core.types.routes import RouteKey
from llmgw.gateway import common
from llmgw.gateway.common import ALIVE_S, LOOKS, Common, Row, memory, shared
from llmgw.gateway.keys import Keys
from llmgw.gateway.openai import ProblemError
from tests.gateway.peers import request
from tests.gateway.rig import run
from tests.gateway.test_keys import HEAD, key
from tests.gateway.test_main import STREAM, client
from tests.gateway.test_workers import Streams, family, workers

#: Few enough that all of them can be taken in a moment.
ROWS = 512


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "ROWS", ROWS)


def gateway(workers: int = 3) -> list[Common]:
    fd = memory(workers)
    try:
        return [shared(fd, i, workers) for i in range(workers)]
    finally:
        os.close(fd)


def living(count: int = 2) -> list[Common]:
    """Some that said at 0 that they live."""
    found = gateway(count)
    for one in found:
        one.alive(0.0)
    return found


def of(one: Common, *keys: RouteKey) -> Keys:
    return Keys(keys, open_without=True, common=one)


def test_each_sees_what_the_others_have() -> None:
    a, b, c = gateway()
    for one in (a, b, c):
        one.alive(10.0)
    rows = [one.row("key", "x") for one in (a, b, c)]
    for n, row in enumerate(rows, 1):
        row.put(n)
    assert [row.others(11.0) for row in rows] == [5, 4, 3]
    others = [one.row("key", "y") for one in (a, b, c)]
    assert [row.others(11.0) for row in others] == [0, 0, 0]
    rows[0].until = 77.5
    assert rows[2].until == 77.5


def test_who_was_not_heard_of_is_out_of_the_count_and_its_heir_begins_at_nothing() -> None:
    fd = memory(2)
    a, b = (shared(fd, i, 2) for i in range(2))
    a.alive(10.0)
    b.alive(10.0)
    row, its = a.row("k"), b.row("k")
    its.put(3)
    assert row.others(10.0 + ALIVE_S - 0.1) == 3
    assert row.others(10.0 + ALIVE_S) == 0
    b.alive(20.0)
    assert row.others(20.0) == 3
    shared(fd, 1, 2).alive(20.0)
    assert row.others(20.0) == 0
    os.close(fd)


def test_where_all_rows_are_taken_each_counts_for_itself() -> None:
    a, b = living()
    held = [a.row(n) for n in range(2 * ROWS)]
    ours, theirs = a.row("late"), b.row("late")
    theirs.put(1)
    assert ours.others(0.0) == 0
    its = b.row(7)
    its.put(1)
    assert held[7].others(0.0) == 1


def test_a_row_that_nobody_holds_any_more_is_anothers() -> None:
    """Each engine that ever ran had one for good: after 4096 of them no limit held over the workers."""
    a, b = living()
    kept = a.row("kept")
    kept.put(2)
    for n in range(2 * ROWS):
        rows = a.row(n), b.row(n)
        rows[0].put(1)
        assert rows[1].others(0.0) == 1
    its = b.row("kept")
    assert its.others(0.0) == 2


def test_a_row_stays_while_one_of_them_holds_it_or_its_time_is_to_come() -> None:
    a, b = living()
    mine, its = a.row("k"), b.row("k")
    mine.put(3)
    its.until = 50.0
    del its
    again = b.row("k")
    assert again.others(0.0) == 3
    del mine, again
    churn(a)
    again = b.row("k")
    assert (again.others(0.0), again.until) == (0, 50.0)
    del again
    for one in (a, b):
        one.alive(50.0)
    churn(a)
    assert b.row("k").until == 0.0


def churn(one: Common) -> None:
    """All rows that are free are somebody's for a moment, with another time."""
    rows = [one.row("churn", n) for n in range(2 * ROWS)]
    for row in rows:
        row.until = min(row.until, 0.0)


def test_two_that_hold_one_row_in_one_process_are_counted_together() -> None:
    """A key whose limit was changed and changed back, with requests of before still in flight."""
    a, b = living()
    before, after, seen = a.row("k"), a.row("k"), b.row("k")
    before.put(2)
    after.put(1)
    assert seen.others(0.0) == 3
    before.put(1)
    assert seen.others(0.0) == 2
    del before
    assert seen.others(0.0) == 1
    del after
    assert seen.others(0.0) == 0


def test_of_two_that_took_one_row_at_once_one_finds_another_within_a_second() -> None:
    a, b = living()
    mine, its = a.row("x"), b.row("x")
    mine.put(2)
    its.put(1)
    at = mine._cell.at
    for one in (a, b):
        assert one._cells
    a.counts[at] = 4711  # a third one took it for free
    for one in (a, b):
        one.alive(1.0)
    assert (mine.others(1.0), its.others(1.0)) == (1, 2)
    assert a.counts[at] == 4711
    assert list(a.counts[at + 2 : at + 4]) == [0, 0]


def test_one_that_was_stopped_gives_up_what_was_taken_from_it() -> None:
    a, b = living()
    stopped = b.row("x")
    stopped.put(5)
    a.alive(ALIVE_S)
    rows = [a.row(n) for n in range(2 * ROWS)]  # of which one has its place
    b.alive(ALIVE_S)
    assert sum(row.others(ALIVE_S) for row in rows) == 0
    del rows
    mine = a.row("x")
    a.alive(ALIVE_S)
    b.alive(ALIVE_S)
    assert mine.others(ALIVE_S) == 5


def test_a_limit_is_that_of_all_workers_together() -> None:
    ones = gateway()
    for one in ones:
        one.alive(0.0)
    carol = key("carol", limits={"in_flight": 2, "per_minute": 4})
    keys = [of(one, carol) for one in ones]
    uses = [keys[0].begin(HEAD, 0.0), keys[1].begin(HEAD, 0.0)]
    for its in keys:
        with contextlib.suppress(ProblemError):
            its.begin(HEAD, 0.0)
            raise AssertionError
    for use in uses:
        assert use
        use.end()
    for its in keys[1:]:
        use = its.begin(HEAD, 0.0)
        assert use
        use.end()
    refused = []
    for its in keys:
        try:
            its.begin(HEAD, 0.0)
        except ProblemError as e:
            refused.append((e.message, e.retry_after_s))
    assert refused == [("API key 'carol': its 4 requests a minute are used up", 15)] * 3


def test_two_that_take_the_last_place_at_once_do_not_both_have_it() -> None:
    """Whatever the order of their steps: each says what it takes before it looks at the other."""
    a, b = living()
    mine, its = a.row("k"), b.row("k")
    mine.put(1)
    its.put(1)
    assert mine.others(0.0) == its.others(0.0) == 1


class Asks:
    """One worker that asks for one more place: what it says, what it looks at and what it does then are three steps."""

    def __init__(self, row: Row, limit: int) -> None:
        self.row, self.limit = row, limit
        self.asked = False
        self.saw: bool | None = None
        self.has: bool | None = None

    @property
    def now(self) -> tuple[bool, bool | None, bool | None]:
        return self.asked, self.saw, self.has

    def step(self) -> None:
        if not self.asked:
            self.row.ask(1)
            self.asked = True
        elif self.saw is None:
            self.saw = self.row.answer(self.limit, 0.0)
        else:
            self.row.put(int(self.saw))
            self.has = self.saw


@pytest.mark.parametrize(("count", "limit"), [(2, 1), (3, 1), (3, 2), (2, 2), (4, 3)])
def test_of_workers_that_ask_at_once_as_many_have_a_place_as_there_are(
    count: int, limit: int
) -> None:
    """Whatever the order of their steps: never more than there are, none is left free, and nobody waits for ever."""
    seen: set[tuple[tuple[bool, bool | None, bool | None], ...]] = set()
    ones = living(count)

    def played(order: tuple[int, ...]) -> None:
        asking = [Asks(one.row("e", order), limit) for one in ones]
        for who in order:
            asking[who].step()
        now = tuple(a.now for a in asking)
        if now in seen:  # what comes of it was looked at: nothing else counts
            return
        seen.add(now)
        left = [i for i, a in enumerate(asking) if a.has is None]
        have = sum(a.has is True for a in asking)
        assert have <= limit, order
        assert left or have == min(count, limit), order
        waits = [a for a in asking if a.asked and a.saw is None]
        stuck = [a for a in waits if a.row.answer(limit, 0.0) is None]
        assert not left or len(stuck) < len(left), order
        for who in left:
            played((*order, who))

    played(())


def test_who_is_stopped_while_it_asks_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has what it asked for until it is not heard of any more; nobody waits for it, and it finds that it has it."""
    a, b = living()
    mine, its = a.row("e"), b.row("e")
    looks: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: looks.append(1))
    its.ask(1)
    assert not mine.claim(1, 1, 0.0)
    assert len(looks) == LOOKS
    assert mine.others(0.0) == 1
    assert its.answer(1, 0.0) is True
    its.put(0)  # it took it, and is done
    assert mine.claim(1, 1, 0.0)
    its.ask(1)  # and was killed
    mine.put(0)
    a.alive(ALIVE_S)
    assert mine.claim(1, 1, ALIVE_S)


def test_a_row_of_a_changed_limit_is_another() -> None:
    (a,) = gateway(1)
    before, after = key("carol", limits={"in_flight": 1}), key("carol", limits={"in_flight": 2})
    keys = of(a, before)
    keys.begin(HEAD, 0.0)
    more = of(a, after).following(keys)
    assert more.begin(HEAD, 0.0)
    assert more.begin(HEAD, 0.0)


def test_over_real_workers_a_key_has_its_limit_once(tmp_path: Path) -> None:
    """Streams on both workers use up a limit of two wherever the next request arrives; a killed worker's come free."""

    async def scenario() -> None:
        async with family(tmp_path) as (w, gateway), contextlib.AsyncExitStack() as stack:
            streams = Streams(w)
            await streams.open(stack)
            taken = sum(map(len, streams.of.values()))
            table = w.control.table
            assert table is not None
            limited = key("k", limits={"in_flight": 1})
            await w.control.publish(replace(table, version=table.version + 1, keys=(limited,)))
            headers = {"authorization": "Bearer k"}

            async def status() -> int:
                async with client(w.port) as c:
                    c.send(request({"model": "m"}, **headers))
                    return (await c.answer()).status

            holder = await stack.enter_async_context(client(w.port))
            while True:  # both workers have the table before any of the limited ones is in flight
                answers = {await status() for _ in range(4)}
                if answers == {200}:
                    break
                await asyncio.sleep(0.05)
            holder.send(request(STREAM, **headers))
            _, got = await holder.head()
            assert [await status() for _ in range(12)] == [429] * 12
            name = got["x-request-id"][:8]
            (its,) = [x for x in workers(gateway) if x.gateway.startswith(name)]
            os.kill(its.pid, signal.SIGKILL)
            async with asyncio.timeout(ALIVE_S + 10):
                while await status() != 200:  # noqa: ASYNC110 - a process has no event to wait for
                    await asyncio.sleep(0.1)
            assert taken

    run(scenario())


def test_alone_it_needs_no_memory_of_the_system() -> None:
    row = common.alone().row("k")
    row.put(3)
    assert row.others(0.0) == 0
    row.until = 5.0
    assert row.until == 5.0
