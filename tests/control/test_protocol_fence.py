"""What an agent must have on its disk before it obeys: the leader's token, the record; and what a full disk may undo.

F21, A42. An order that could not be journaled is refused, and nothing of it is left for a restart to find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from llmgw.control.sessions import REPEAT_S
from llmgw.core.types.messages import StopShard, Token
from llmgw.core.types.node import CommandReceived, Tick
from llmgw.core.types.record import Record, Watch
from tests.control.bench import Agent, Bench, scenario
from tests.control.pair import Node, Wire, one_node, until, up


@contextmanager
def in_the_way(path: Path) -> Iterator[None]:
    """A folder where a file is to be written: as good as a full disk."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    (path / "x").mkdir(parents=True)
    yield
    (path / "x").rmdir()
    path.rmdir()
    aside.rename(path)


@one_node
async def test_f21_an_epoch_that_an_agent_could_not_store_is_asked_again(node: Node) -> None:
    """Asked once only, the agent would obey an older leader until somebody restarted it."""
    async with node.running() as loop:
        await up(node)
        token = node.folder / "token.json"
        with in_the_way(token):
            await Agent(node.bench, "box2", epoch_seen=41, leader_uuid="another").register()
            await until(lambda: node.bench.events("refused"), "a refusal")
            assert node.bench.events("refused")[0]["reason"] == "cannot_journal"
            assert loop.state.token is not None
            assert loop.state.token.epoch == 1
            node.wire.log.clear()
            node.link.offer()
            session = node.bench.control.sessions.of("box1")
            assert session is not None
            await until(lambda: session.applied == session.seq, "it is acknowledged")
            await node.bench.later(1)
            assert ("register", 200) not in node.wire.log
        await node.bench.later(REPEAT_S)
        await until(lambda: ("register", 200) in node.wire.log and node.agree(), "fenced")
        assert loop.state.token.epoch == 42
        assert b'"epoch":42' in token.read_bytes()
        node.wire.log.clear()
        for _ in range(3):
            await node.bench.later(REPEAT_S)
            node.link.offer()
            await until(node.agree)
        assert ("register", 200) not in node.wire.log


@one_node
async def test_f21_a_token_that_could_not_be_written_is_written_before_the_next_order(
    node: Node,
) -> None:
    """Of the leader that let us register: kept in memory only, a restart would obey an older one."""
    async with node.running() as loop:
        await up(node)
        (record,) = node.records.values()
        token = node.folder / "token.json"
        with in_the_way(token):
            node.bench.control.state = replace(node.bench.control.state, epoch=7)
            node.link.register_again("the test says so")
            control = node.bench.control
            mine = Token(7, control.state.leader_uuid, control.lease.id)
            await until(lambda: loop.state.token == mine)
            stop = replace(record.start, epoch=7, seq=50)
            assert node.link.session is not None
            await loop.obey(node.link.url, replace(stop, session=node.link.session.session), {})
            await until(lambda: node.bench.events("refused"), "a refusal")
            assert node.bench.events("refused")[0]["reason"] == "cannot_journal"
        loop.beat_s = 0.0
        loop.post(Tick())
        await until(lambda: b'"epoch":7' in token.read_bytes(), "written")


@one_node
async def test_f21_an_epoch_counts_though_the_order_it_came_with_could_not_be_journaled(
    node: Node,
) -> None:
    """It is on the disk: thrown away in memory, an older leader was obeyed until the next restart."""
    async with node.running() as loop:
        await up(node)
        (record,) = node.records.values()
        url, session = node.link.url, node.link.session
        assert session is not None
        node.wire.cut = True
        order = replace(
            record.start,
            shard="new-1/0",
            replica="new-1",
            incarnation="inc-new",
            port=record.start.port + 1,
            session=session.session,
        )
        blocked = node.folder / "records/new-1@0@inc-new.json.new"
        blocked.mkdir()
        higher = replace(order, epoch=7, leader_uuid="L7")
        loop.feed(CommandReceived(command=higher, control=url))
        assert loop.state.token == Token(7, "L7", node.bench.control.lease.id)
        assert ("new-1/0", "inc-new") not in node.records
        blocked.rmdir()
        loop.feed(CommandReceived(command=order, control=url))
        assert ("new-1/0", "inc-new") not in node.records
        reasons = [r.reason for r in node.link.outbox.refused]
        assert reasons == ["cannot_journal", "lower_epoch"]


@one_node
async def test_an_order_that_was_half_journaled_is_not_found_obeyed_after_a_restart(
    node: Node,
) -> None:
    async with node.running() as loop:
        await up(node)
        (record,) = node.records.values()
        url, session = node.link.url, node.link.session
        assert session is not None
        node.wire.cut = True
        (journal,) = (node.folder / "records").glob("alpha*.json")
        due = replace(record.start, shard="due-1/0", replica="due-1", incarnation="inc-due")
        waiting = Record(start=due, watch=Watch(identified=True))
        loop.state = replace(loop.state, records=loop.state.records | {waiting.key: waiting})
        blocked = node.folder / "records/due-1@0@inc-due.json.new"
        blocked.mkdir()
        stop = StopShard(
            shard=record.start.shard,
            incarnation=record.key[1],
            reason="test",
            session=session.session,
            epoch=record.start.epoch,
            leader_uuid=record.start.leader_uuid,
        )
        loop.feed(CommandReceived(command=stop, control=url))
        assert node.link.outbox.refused[-1].reason == "cannot_journal"
        assert b'"desired":"stopped"' in journal.read_bytes()
        blocked.rmdir()
        loop.beat_s = 0.0
        loop.post(Tick())
        await until(lambda: b'"desired":"running"' in journal.read_bytes(), "taken back")
        assert record.key in node.alive


@scenario
async def test_a42_an_order_is_acknowledged_when_it_is_journaled_and_not_before(
    bench: Bench,
) -> None:
    """Until then control keeps it: an agent that dies with it in hand is not taken to have it."""
    models = bench.catalog.read_text()
    bench.catalog.write_text("version: 1\nmodels: {}\n")
    node = Node(Wire(bench), bench.folder / "agent")
    async with bench.running():
        async with node.running():
            await until(node.agree)
            (task,) = (t for t in asyncio.all_tasks() if "Loop.run" in repr(t.get_coro()))
            task.cancel()
            await asyncio.wait({task})
            bench.catalog.write_text(models)
            await bench.post("/api/v1/catalog")
            await until(lambda: not node.loop.queue.empty(), "the order is there")
            node.link.offer()
            await until(lambda: not node.link.outbox.ready.is_set(), "told")
            await asyncio.sleep(0.05)
            session = node.session
            assert session is not None
            assert (session.applied, list(session.queue)) == (0, [1])
        async with node.running():
            await up(node)
            assert len(node.alive) == 1
