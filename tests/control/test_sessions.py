"""Sessions of agents with real messages: one a node, commands until acknowledged, epochs, and who leads."""

import shutil
import sqlite3
from contextlib import closing

import httpx
import pytest
from msgspec.structs import replace

from llmgw.control.sessions import NUMBERS_KEPT, REPEAT_S, Sessions
from llmgw.core.types.messages import (
    EPOCH_END,
    DrainShard,
    Events,
    NodeReport,
    Refusal,
    SendReport,
    Start,
    StopShard,
)
from llmgw.errors import LlmgwError
from tests.control.bench import Agent, Bench, engine, scenario, started


@scenario
async def test_f58_a_lost_reply_changes_nothing(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        first = control.state.nodes["box1"].shards
        verdicts = await agent.register()
        assert verdicts == {"alpha-1/0": "keep"}
        assert [s.report for s in first] == [s.report for s in control.state.nodes["box1"].shards]
        assert bench.orders(agent) == []


@scenario
async def test_f57_a_start_that_an_old_session_never_took_is_placed_afresh(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        old = agent.session
        await agent.register()
        command = (await agent.poll())[0]
        assert isinstance(command, Start)
        assert command.session != old
        await agent.tell(started(command))
        await bench.later(10)
        assert len(bench.control.state.nodes["box1"].shards) == 1


@scenario
async def test_a_different_digest_asks_for_a_complete_report(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        assert (await agent.tell()).match
        assert not (await agent.tell(digest="0" * 64)).match
        agent.runs(engine("alpha-2", port=18001))
        assert not (await agent.tell()).match
        await agent.register()
        assert (await agent.tell()).match


@scenario
async def test_events_count_and_older_ones_are_ignored(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await agent.tell(engine(state="unhealthy"))
        agent.n -= 1
        assert (await agent.tell(engine(state="ready"))).match
        assert control.state.nodes["box1"].shards[0].report.state == "unhealthy"


@scenario
async def test_a_silent_session_ends_after_15_s_and_its_node_is_held(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.later(14)
        assert bench.connected("box1")
        await bench.later(2)
        assert not bench.connected("box1")
        await agent.poll(status=410)
        await agent.tell(status=410)
        table = await bench.get("/gateway/v1/routes?version=0")
        assert [r["state"] for r in table["models"]["alpha"]["replicas"]] == ["ready"]
        assert await agent.register() == {"alpha-1/0": "keep"}


@scenario
async def test_f16_an_epoch_from_before_a_restored_backup_is_outbid_before_the_answer(
    bench: Bench,
) -> None:
    async with bench.running() as control:
        other = Agent(bench, "box2")
        await other.register()
        agent = Agent(bench, epoch_seen=41, leader_uuid="another")
        await agent.register()
        assert agent.said.epoch == 42
        assert control.store.epoch() == 42
        (order, *_) = [c for c in await other.poll() if isinstance(c, SendReport)]
        assert order.epoch == 42
        assert control.routes.version > 42_000_000


@scenario
async def test_a_refusal_for_the_epoch_asks_the_agent_what_it_knows(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        refusal = Refusal(
            seq=1, shard="", incarnation="", reason="lower_epoch", why="epoch 1 is over"
        )
        assert not (await agent.tell(refused=(refusal,))).match


@scenario
async def test_two_leaders_block_this_one_until_the_other_is_gone(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        (command,) = await agent.poll()
        no = Refusal(
            seq=command.seq,
            shard=command.shard,
            incarnation=command.incarnation,
            reason="two_leaders",
            why="http://c2 leads this node too and was obeyed first: use --lease etcd",
        )
        await agent.tell(refused=(no,))
        assert "use --lease etcd" in (await bench.get("/api/v1/status"))["blocked"]
        kinds = {type(c) for c in control.sessions.get(agent.session).queue.values()}
        assert Start not in kinds - {type(command)}
        assert await _next(agent, SendReport)
        await agent.register()
        assert (await bench.get("/api/v1/status"))["blocked"] is None
        assert await _next(agent, Start)


async def _next(agent: Agent, kind: type) -> bool:
    return any(isinstance(c, kind) for c in await agent.poll())


@scenario
async def test_f55_an_agent_that_is_too_old_is_read_only(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench, protocol=0)
        agent.runs(engine())
        assert await agent.register() == {"alpha-1/0": "hold"}
        assert agent.said.read_only
        await bench.later(70)
        assert not [s for s in control.sessions.nodes() if control.sessions.of(s).queue]


@scenario
async def test_f54_a_renamed_node_takes_its_engines_along(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        agent.report = replace(agent.report, node="box9")
        await agent.register()
        assert list(control.state.nodes) == ["box9"]
        assert bench.orders(agent) == []


@scenario
async def test_a_lost_answer_to_a_poll_is_given_again(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        first = await agent.poll()
        agent.after = 0
        assert await agent.poll() == first
        await agent.tell(started(first[0]))  # type: ignore[arg-type]
        assert bench.orders(agent) == ["start"]


@scenario
async def test_f16_a_restored_backup_leads_with_an_epoch_nobody_has_seen(bench: Bench) -> None:
    agent = Agent(bench)
    agent.runs(engine())
    async with bench.running():
        await agent.register()
    shutil.copy(bench.inventory, bench.folder / "backup")
    for _ in range(2):
        async with bench.running():
            await agent.register()
    shutil.copy(bench.folder / "backup", bench.inventory)
    async with bench.running():
        assert await agent.register() == {"alpha-1/0": "adopt"}
        assert agent.said.epoch == 4
        assert bench.orders(agent) == []


@scenario
async def test_f15_an_epoch_that_cannot_be_outbid_ends_the_lead_until_it_can(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        version = control.routes.version
        with closing(sqlite3.connect(bench.inventory, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            stranger = Agent(bench, "box2", epoch_seen=41, leader_uuid="another")
            await stranger.register()
            assert not stranger.said.leader
            assert "epoch 41 was seen" in bench.events("blocked")[0]["why"]
            assert "no epoch can be stored" in (await bench.get("/api/v1/status"))["blocked"]
            table = await bench.get("/gateway/v1/routes?version=0")
            assert table["models"]["alpha"]["status"] == "loaded"  # routes go on
            assert table["version"] >= version
            other.execute("ROLLBACK")
        await bench.later(2)
        assert bench.leading()
        assert bench.settling()
        assert await agent.register() == {"alpha-1/0": "adopt"}
        assert agent.said.epoch == 42
        assert list(control.state.nodes) == ["box1", "box2"]


def test_the_same_order_is_not_queued_twice_while_it_is_under_way() -> None:
    sessions = Sessions()
    session = sessions.open(Agent(Nobody()).report, "", 0.0)
    stop = StopShard(shard="a/0", incarnation="i", reason="idle")
    drain = DrainShard(shard="a/0", incarnation="i", reason="idle")
    assert sessions.send("box1", stop, 0.0)
    assert not sessions.send("box1", stop, 100.0)
    assert sessions.send("box1", drain, 100.0)
    assert sessions.send("box1", replace(stop, incarnation="j"), 100.0)
    sessions.heard(session, Events(session=session.id, n=1, applied=3), 101.0)
    assert not sessions.send("box1", drain, 100.0 + REPEAT_S - 1)
    assert sessions.send("box1", drain, 100.0 + REPEAT_S)
    assert not sessions.send("box9", stop, 0.0)


def test_a_session_of_months_does_not_grow() -> None:
    sessions = Sessions()
    session = sessions.open(Agent(Nobody()).report, "", 0.0)
    for n in range(3 * NUMBERS_KEPT):
        now = n * 60.0
        sessions.send("box1", StopShard(shard="a/0", incarnation=str(n), reason="idle"), now)
        sessions.heard(session, Events(session=session.id, n=n, applied=session.seq), now)
    assert len(session.numbers) <= NUMBERS_KEPT + 1


class Nobody:
    """Stands where a control would."""

    client: httpx.AsyncClient


def test_a_registration_that_was_held_up_on_the_way_is_refused_behind_a_newer_one() -> None:
    sessions = Sessions()
    report = NodeReport(node="box1", node_id="id", boot_id="a", registration=2)
    sessions.open(report, "", 0.0)
    for late in (1, 2):
        with pytest.raises(LlmgwError, match=f"registration {late} of box1 refused: 2, a newer"):
            sessions.check(replace(report, registration=late), "", 1.0)
    sessions.check(replace(report, registration=3), "", 1.0)
    sessions.check(replace(report, registration=0), "", 1.0)
    sessions.check(replace(report, registration=1, boot_id="b"), "", 99.0)
    sessions.end_all()
    with pytest.raises(LlmgwError, match="refused"):
        sessions.check(report, "", 99.0)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "\x1b[2Jbox", "x" * 64, "-x"])
def test_a_node_without_a_proper_name_is_refused(name: str) -> None:
    with pytest.raises(LlmgwError, match="is no name of a node"):
        Sessions().check(NodeReport(node=name, node_id="id"), "", 0.0)


@pytest.mark.parametrize("epoch", [-1, EPOCH_END, 10**30])
def test_an_epoch_that_no_control_can_have_had_is_refused(epoch: int) -> None:
    with pytest.raises(LlmgwError, match="no control ever led with epoch"):
        Sessions().check(NodeReport(node="box1", node_id="id", epoch_seen=epoch), "", 0.0)
