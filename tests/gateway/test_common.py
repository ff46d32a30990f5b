"""Limits of keys hold over all workers of one gateway, whatever becomes of one of them."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from msgspec.structs import replace

from llmgw.core.types.routes import RouteKey
from llmgw.gateway import common
from llmgw.gateway.common import ALIVE_S, ROWS, Common, memory, shared
from llmgw.gateway.keys import Keys
from llmgw.gateway.openai import ProblemError
from tests.gateway.peers import request
from tests.gateway.rig import run
from tests.gateway.test_keys import HEAD, key
from tests.gateway.test_main import STREAM, client
from tests.gateway.test_workers import Streams, family, workers


def gateway(workers: int = 3) -> list[Common]:
    fd = memory(workers)
    try:
        return [shared(fd, i, workers) for i in range(workers)]
    finally:
        os.close(fd)


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
    assert [one.row("key", "y").others(11.0) for one in (a, b, c)] == [0, 0, 0]
    rows[0].until = 77.5
    assert rows[2].until == 77.5


def test_who_was_not_heard_of_is_out_of_the_count_and_its_heir_begins_at_nothing() -> None:
    fd = memory(2)
    a, b = (shared(fd, i, 2) for i in range(2))
    a.alive(10.0)
    b.alive(10.0)
    row = a.row("k")
    b.row("k").put(3)
    assert row.others(10.0 + ALIVE_S - 0.1) == 3
    assert row.others(10.0 + ALIVE_S) == 0
    b.alive(20.0)
    assert row.others(20.0) == 3
    shared(fd, 1, 2).alive(20.0)
    assert row.others(20.0) == 0
    os.close(fd)


def test_where_all_rows_are_taken_each_counts_for_itself() -> None:
    a, b = gateway(2)
    names = {a.row(n)._at for n in range(ROWS)}
    assert len(names) == ROWS
    for one in (a, b):
        one.alive(0.0)
    b.row("late").put(1)
    assert a.row("late").others(0.0) == 0
    b.row(7).put(1)
    assert a.row(7).others(0.0) == 1


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
    a, b = gateway(2)
    for one in (a, b):
        one.alive(0.0)
    mine, its = a.row("k"), b.row("k")
    mine.put(1)
    its.put(1)
    assert mine.others(0.0) == its.others(0.0) == 1


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
