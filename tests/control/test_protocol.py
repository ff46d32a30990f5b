"""Both sides of the talk in one process, the wire between them damaged: what may be lost, and what never is.

A42: nothing that was ordered in an older session runs unreported. F57, F58, F60, and the bounds of asking again.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.agent.link import BACKOFF_CAP_S, BACKOFF_S, back_off_s
from llmgw.control.sessions import DISPUTE_S
from llmgw.core.types.messages import SendReport, Start
from llmgw.core.types.node import CommandReceived
from tests.control.bench import CATALOG, Agent, Bench, engine, scenario
from tests.control.pair import Fault, Node, Wire, first, one_node, until, up


@one_node
async def test_a42_the_queue_of_a_session_whose_answer_was_lost_dies_with_it(node: Node) -> None:
    """F58: control has placed already, in a session that nobody knows. The next one places afresh, once."""
    node.wire.fault = first("register", "unheard", "unheard")
    async with node.running():
        await up(node)
        assert len(node.bench.events("start")) == 3
        (record,) = node.records.values()
        assert node.session is not None
        assert record.start.session == node.session.id
        assert len(node.alive) == 1
        assert set(node.known()) == set(node.records)


@one_node
async def test_f58_the_same_full_list_again_changes_nothing(node: Node) -> None:
    async with node.running():
        await up(node)
        alive = dict(node.alive)
    node.wire.fault = first("register", "unheard", "lost", "unheard")
    async with node.running():
        await until(lambda: node.wire.log.count(("register", 200)) == 2, "registered")
        await until(node.agree)
        assert node.alive == alive
        assert len(node.bench.events("start")) == 1
        assert not node.bench.events("forget")
        assert {v.verdict for v in node.bench.control.plan.verdicts} == {"keep"}


@one_node
async def test_a_registration_held_up_on_the_way_is_overtaken(node: Node) -> None:
    """Folded in late it would undo what was started since (A42)."""
    node.wire.fault = first("register", "late")
    async with node.running():
        await up(node)
        known = node.known()
        assert await node.wire.release() == [409]
        assert node.known() == known
        assert node.wire.log.count(("register", 200)) == 1


@scenario
async def test_a_registration_held_up_over_a_restart_of_control_is_as_late(bench: Bench) -> None:
    wire = Wire(bench)
    node = Node(wire, bench.folder / "agent")
    async with bench.running():
        wire.fault = first("register", "late")
        async with node.running():
            await up(node)
    async with bench.running():
        assert await wire.release() == [409]
        assert not bench.events("forget")
        async with node.running():
            await until(node.agree)
        assert len(bench.events("start")) == 1


@one_node
async def test_a_registration_delivered_twice_costs_another_one(node: Node) -> None:
    node.wire.fault = first("register", "twice")
    async with node.running():
        await up(node)
        registers = [code for what, code in node.wire.log if what == "register"]
        assert registers == [409, 200]
        assert len(node.alive) == 1


@pytest.mark.parametrize("fault", ["lost", "unheard", "twice", "late"])
@pytest.mark.parametrize("what", ["commands", "events"])
def test_a_call_that_fails_costs_a_session_and_no_engine(
    tmp_path: Path, what: str, fault: Fault
) -> None:
    @one_node
    async def story(node: Node) -> None:
        node.wire.fault = first(what, fault, fault)
        async with node.running():
            await up(node)
            await node.wire.release()
            await until(node.agree)
            assert len(node.alive) == 1
            assert not node.bench.events("forget")

    story(tmp_path)


@one_node
async def test_what_an_old_session_says_late_is_not_heard(node: Node) -> None:
    async with node.running():
        await up(node)
        node.wire.fault = first("events", "late")
        (record,) = node.records.values()
        node.hands.die(record)
        await until(lambda: node.wire.held, "the news of it is held up")
        await until(lambda: node.records[record.key].attempt == 2 and node.agree(), "up again")
        assert await node.wire.release() == [410]
        assert node.agree()


@one_node
async def test_a42_what_was_accepted_is_in_the_snapshot_and_on_the_disk(node: Node) -> None:
    """One queue: what came before the snapshot is journaled and in it, what comes after it is refused."""
    async with node.running() as loop:
        await up(node)
        (record,) = node.records.values()
        url = node.link.url

        def another(n: int) -> Start:
            return replace(
                record.start,
                shard=f"other-{n}/0",
                replica=f"other-{n}",
                incarnation=f"inc-{n}",
                port=record.start.port + n,
                seq=n,
            )

        _, report = await asyncio.gather(loop.obey(url, another(1), {}), loop.snapshot(url))
        assert "other-1/0" in {s.shard for s in report.shards}
        assert (node.folder / "records/other-1@0@inc-1.json").exists()
        after, _ = await asyncio.gather(loop.snapshot(url), loop.obey(url, another(2), {}))
        assert "other-2/0" not in {s.shard for s in after.shards}
        assert ("other-2/0", "inc-2") not in node.records
        await until(lambda: node.bench.events("refused"), "a refusal")
        assert node.bench.events("refused")[0]["reason"] == "other_session"


@one_node
async def test_an_order_acknowledged_that_was_never_given_ends_the_session(node: Node) -> None:
    """Its numbers are another session's: orders would be taken for heard unseen."""
    agent = Agent(node.bench)
    await agent.register()
    agent.after = 2
    await agent.poll(status=410)
    agent.after = 1
    await agent.tell()
    session = node.bench.control.sessions.get(agent.session)
    assert session.applied == 1
    agent.after = 99
    await agent.tell()
    assert session.applied == session.seq == 1


# ---------------------------------------------------------------- anti-entropy, and its bounds


@one_node
async def test_a_picture_that_lost_a_shard_is_whole_again_after_one_report(node: Node) -> None:
    async with node.running():
        await up(node)
        there = node.bench.control.state.nodes["box1"]
        nodes = node.bench.control.state.nodes | {"box1": replace(there, shards=())}
        node.bench.control.state = replace(node.bench.control.state, nodes=nodes)
        node.wire.log.clear()
        node.link.offer()
        await until(lambda: node.wire.log.count(("register", 200)) == 1 and node.agree(), "healed")
        node.link.offer()
        await until(node.agree)
        assert node.wire.log.count(("register", 200)) == 1
        assert len(node.alive) == 1


@scenario
async def test_two_pictures_that_no_report_settles_are_said_once(bench: Bench) -> None:
    """A state of a newer version reads as unknown here: asked for again and again, its sessions never lasted."""
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine(state="hibernating"))
        await agent.register()
        assert not (await agent.tell()).match
        assert not (await agent.tell()).match  # it has not registered yet
        for _ in range(3):
            await agent.register()
            assert (await agent.tell()).match
            assert (await agent.tell()).match
        (said,) = bench.events("digest")
        assert "the agent on box1 and control read its shards differently" in said["why"]
        agent.runs(engine("alpha-2", port=18001))
        assert (await agent.tell(*agent.shards.values())).match
        await bench.passes(DISPUTE_S, agent)
        assert not (await agent.tell()).match  # it is another difference now, and a while later
        agent.runs(engine())
        await agent.register()
        assert (await agent.tell()).match
        assert not (await agent.tell(digest="0" * 64)).match  # all was well in between: at once
        assert len(bench.events("digest")) == 1


@one_node
async def test_an_agent_whose_control_never_agrees_keeps_its_session(node: Node) -> None:
    """Another version's digest: a full report every few seconds would be the end of every command."""
    node.bench.control.sessions.differ = lambda *_: True  # type: ignore[method-assign]
    async with node.running():
        await up(node)
        node.wire.changed = lambda content: re.sub(
            rb'"digest":"[^"]*"', b'"digest":"other"', content
        )
        node.wire.log.clear()
        for _ in range(5):
            node.link.offer()
            await until(lambda: not node.link.outbox.ready.is_set(), "told")
            await asyncio.sleep(0.02)
        assert node.wire.log.count(("register", 200)) == 1
        assert node.link.dispute_said


def test_the_back_off_is_jittered_in_full_and_capped() -> None:
    for failures in range(20):
        most = min(BACKOFF_CAP_S, BACKOFF_S * 2**failures)
        tries = [back_off_s(failures) for _ in range(200)]
        assert 0 <= min(tries) < most / 4
        assert most * 3 / 4 < max(tries) <= most
    assert back_off_s(10**6) <= BACKOFF_CAP_S


@one_node
async def test_a_poll_that_is_not_held_is_not_repeated_at_once(node: Node) -> None:
    """Control on its way out answers every poll with nothing: the agent spun, in this process for ever."""
    async with node.running():
        await up(node)
        node.wire.log.clear()
        node.bench.control.sessions.release()
        await asyncio.sleep(0.3)
        assert len([what for what, _ in node.wire.log if what == "commands"]) <= 2


@one_node
async def test_an_agent_that_is_ended_while_a_call_fails_ends(node: Node) -> None:
    """The two at one moment: the cancellation was lost, and the agent outlived its SIGTERM."""
    async with node.running():
        await up(node)
        (link,) = (t for t in asyncio.all_tasks() if "Link.run" in repr(t.get_coro()))

        def fail(_: str) -> Fault:
            link.cancel()
            return "lost"

        node.wire.fault = fail
        node.link.offer()
        await asyncio.wait({link}, timeout=60)
        assert link.cancelled()


@scenario
async def test_orders_that_come_in_another_order_are_all_taken(bench: Bench) -> None:
    """By their numbers: taken as they came, the highest would acknowledge the others unheard."""

    def reversed_(content: bytes) -> bytes:
        plain = json.loads(content)
        if "commands" in plain:
            plain["commands"] = plain["commands"][::-1]
        return json.dumps(plain).encode()

    bench.catalog.write_text(
        CATALOG.replace("{min: 1}", "{min: 3, max: 3}") + "defaults: {start_limit: 3}\n"
    )
    wire = Wire(bench)
    wire.answered = reversed_
    node = Node(wire, bench.folder / "agent")
    async with bench.running(), node.running():
        await until(lambda: len(node.alive) == 3 and node.agree(), "three engines")
        seqs = [r.start.seq for r in node.records.values()]
        assert sorted(seqs) == seqs == [1, 2, 3]


@one_node
async def test_a_refusal_is_told_though_the_call_that_told_it_failed(node: Node) -> None:
    """No inventory has it: lost with its session, control would wait for an engine that nobody starts."""
    async with node.running() as loop:
        await up(node)
        session = node.session
        assert session is not None
        token = node.bench.control.token
        order = SendReport(session="another", epoch=token.epoch, leader_uuid=token.leader_uuid)
        node.wire.fault = first("events", "lost")
        loop.feed(CommandReceived(command=order, control=node.link.url))
        await until(lambda: node.bench.events("refused"), "told in the next session")
        assert node.session is not session
        assert node.bench.events("refused")[0]["reason"] == "other_session"
