"""`POST /api/v1/adopt` with a pid: what is asked of whom, and every way in which it comes to nothing (A71)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.control import takeover
from llmgw.core.types.by_hand import Fact, Started
from llmgw.core.types.messages import Foreign, Refusal, ShardReport, Take
from tests.control.bench import ON_DEMAND, Agent, Bench, engine, scenario

PID = 4242
ARGV = ("/opt/bin/engine", "--port", "9000")
MINE = Started(pid=PID, start_ticks=77, argv=ARGV, port=9000, cwd="/")
ROW = Foreign(pid=PID, command="engine --port 9000", port=9000, by_hand=MINE)
TWO = "      - {name: other, command: [/bin/other]}\n"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "SEEN_S", 0.2)


def body(pid: int = PID, what: str = "alpha/main", node: str = "box1", **more: Any) -> Any:
    return {"node": node, "pid": pid, "as": what, **more}


async def there(bench: Bench, *rows: Foreign, **report: Any) -> Agent:
    agent = Agent(bench, foreign=rows or (ROW,), **report)
    await agent.register()
    return agent


@asynccontextmanager
async def settled(bench: Bench) -> AsyncIterator[Agent]:
    """A control that has settled, with an on-demand model and one engine that somebody started by hand."""
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = await there(bench)
        await bench.passes(61, agent)
        yield agent


async def ordered(agent: Agent) -> Take:
    """The order, once it is queued."""
    while True:
        for command in await agent.poll():
            if isinstance(command, Take):
                return command


def done(take: Take, state: str = "ready") -> ShardReport:
    start = take.start
    report = engine()
    return replace(
        report,
        shard=start.shard,
        replica=start.replica,
        incarnation=start.incarnation,
        fingerprint=start.fingerprint,
        port=start.port,
        pid=take.pid,
        state=state,
    )


async def refused(bench: Bench, status: int, **about: Any) -> str:
    error = (await bench.post("/api/v1/adopt", body(**about), status))["error"]
    return f"{error['message']} - {error['hint']}"


@scenario
async def test_a71_one_order_for_two_calls_and_its_state_is_the_answer(bench: Bench) -> None:
    async with settled(bench) as agent:
        calls = [asyncio.create_task(bench.post("/api/v1/adopt", body())) for _ in range(2)]  # noqa: TID251
        take = await ordered(agent)
        assert (take.pid, take.start_ticks, take.start.port) == (PID, 77, 9000)
        assert (take.start.model, take.start.profile, take.start.gpus) == ("alpha", "main", ())
        assert take.start.fingerprint
        assert bench.orders(agent) == ["take"]
        await agent.tell(done(take))
        one, other = [await call for call in calls]
        assert one == other
        assert (one["taken"], one["state"], one["exit_code"]) == (True, "ready", 0)
        assert one["shard"] == take.shard
        assert bench.control.takeovers == {}
        again = await bench.post("/api/v1/adopt", body())
        assert (again["already"], again["exit_code"], again["shard"]) == (True, 0, take.shard)
        said = await refused(bench, 404, what="alpha/nix")
        assert "no profile called alpha/nix" in said
        assert bench.events("takeover")
        table = await bench.get("/gateway/v1/routes?version=0")
        assert [r["replica"] for r in table["models"]["alpha"]["replicas"]] == [take.start.replica]


@scenario
async def test_a71_its_agents_no_is_the_answer_with_all_that_was_compared(bench: Bench) -> None:
    """And holds nothing against the profile: its next start is another process."""
    async with settled(bench) as agent:
        call = asyncio.create_task(bench.post("/api/v1/adopt", body()))  # noqa: TID251
        take = await ordered(agent)
        no = Refusal(
            seq=take.seq,
            shard=take.shard,
            incarnation=take.incarnation,
            reason="not_taken",
            why="user uid 7 instead of uid 0",
            facts=(Fact("user", "uid 0", "uid 7", same=False),),
        )
        await agent.tell(refused=(replace(no, shard="other/0"), no))
        said = await call
        assert (said["taken"], said["exit_code"], said["why"]) == (False, 1, no.why)
        assert {"what": "user", "wanted": "uid 0", "runs": "uid 7", "same": False} in said["facts"]
        assert "stop it and let llmgw start it" in said["hint"]
        assert bench.control.state.refused == ()
        assert not bench.control.state.nodes["box1"].shards


@scenario
async def test_a71_an_agent_that_does_not_answer_is_told_apart(bench: Bench) -> None:
    async with settled(bench):
        takeover.TAKEN_S, before = 0.2, takeover.TAKEN_S
        try:
            said = await bench.post("/api/v1/adopt", body())
        finally:
            takeover.TAKEN_S = before
        assert (said["taken"], said["exit_code"]) == (False, 3)
        assert "may still be done" in said["why"]


@scenario
async def test_a71_one_that_ends_at_once_is_said_to_have_failed(bench: Bench) -> None:
    async with settled(bench) as agent:
        call = asyncio.create_task(bench.post("/api/v1/adopt", body()))  # noqa: TID251
        take = await ordered(agent)
        await agent.tell(replace(done(take, "failed"), error="nobody saw it exit"))
        said = await call
        assert (said["taken"], said["state"], said["exit_code"]) == (True, "failed", 1)
        assert said["why"] == "nobody saw it exit"


@scenario
async def test_a71_what_differs_what_is_too_many_and_what_is_too_early(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND + TWO)
    async with bench.running():
        worse = replace(ROW, pid=7, by_hand=replace(MINE, pid=7, argv=(*ARGV, "-c", "1")))
        agent = await there(bench, ROW, worse, epoch_seen=5, leader_uuid="another")
        early = await bench.post("/api/v1/adopt", body())
        assert (early["taken"], early["exit_code"]) == (False, 3)
        assert "control is settling" in early["why"]
        await bench.passes(61, agent)
        said = await bench.post("/api/v1/adopt", body(pid=7))
        assert said["exit_code"] == 1
        assert said["why"] == "it is not what alpha/main starts: -c 1 instead of nothing"
        dry = await bench.post("/api/v1/adopt", body(dry_run=True))
        assert (dry["taken"], dry["exit_code"], dry["why"]) == (False, 0, None)
        assert all(f["same"] for f in dry["facts"])
        assert bench.orders(agent) == []
        await agent.tell(engine())
        too_many = await bench.post("/api/v1/adopt", body())
        assert too_many["exit_code"] == 1
        assert too_many["why"] == "alpha has 1 of max 1 replicas: alpha-1 (ready)"
        taken = await refused(bench, 409, pid=4711, what="alpha/other")
        assert "pid 4711 on box1 is alpha-1/0 (alpha/main) already" in taken


@scenario
async def test_a71_names_that_nobody_has_are_refused_with_those_there_are(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND + TWO)
    async with bench.running():
        deaf = Foreign(pid=9, gpu="GPU-0", command="train.py")
        lost = Foreign(pid=8, port=9001, command="engine", why="carries the marks of node old")
        await there(bench, ROW, deaf)
        await bench.later(61)
        assert "no node called box9" in await refused(bench, 404, node="box9")
        assert "does not answer" in await refused(bench, 409)
        await there(bench, ROW, deaf, lost)
        for about, words in (
            ({"pid": 1}, "box1 reports no engine with pid 1 that llmgw did not start"),
            ({"pid": 1}, f"box1:{PID}"),
            ({"pid": 9}, "pid 9 on box1 (train.py) does not listen as an engine"),
            ({"pid": 8}, "pid 8 on box1 carries the marks of node old"),
            ({"what": "beta/main"}, "no model called beta"),
            ({"what": "alpha/man"}, "no profile called alpha/man - did you mean alpha/main?"),
        ):
            said = await refused(bench, 404, **about)
            assert words in said, said
        said = await refused(bench, 400, what="alpha")
        assert (
            said == "alpha has 2 profiles, and none is named - say which: alpha/main, alpha/other"
        )
        for wrong in ({"pid": "1"}, {"pid": PID, "node": "box1"}):
            await bench.post("/api/v1/adopt", wrong, 400)


@scenario
async def test_a71_what_another_agent_of_the_host_has_is_not_taken_twice(bench: Bench) -> None:
    """It carries nobody's markers, so the second agent takes it for a person's."""
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        first = Agent(bench, boot_id="boot-1")
        first.runs(engine(pid=PID))
        await first.register()
        second = await there(bench, node="box2", boot_id="boot-1")
        await bench.passes(61, first, second)
        said = await bench.post("/api/v1/adopt", body(node="box2"))
        assert (said["already"], said["node"], said["shard"]) == (True, "box1", "alpha-1/0")
        assert bench.orders(second) == []


@scenario
async def test_a70_agents_are_told_what_profiles_start(bench: Bench) -> None:
    async with bench.running():
        agent = await there(bench)
        assert agent.said.programs == ("engine",)
        assert (await agent.tell()).programs == ("engine",)
        bench.catalog.write_text(ON_DEMAND + TWO)
        await bench.post("/api/v1/catalog")
        assert (await agent.tell()).programs == ("engine", "other")


@scenario
async def test_a70_the_dry_run_says_what_could_be_taken_over_and_how(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        gpu = Foreign(pid=PID + 1, gpu="GPU-0", memory_bytes=5, by_hand=MINE)
        await there(bench, ROW, gpu, Foreign(pid=9, gpu="GPU-0", command="Xorg"))
        document = await bench.get("/api/v1/plan")
        rows = {f["pid"]: f for f in document["foreign"]}
        assert rows[PID]["nearest"] == rows[PID + 1]["nearest"] == "alpha/main"
        assert rows[PID]["differs"] == [{"what": "GPUs", "wanted": "0", "runs": "1"}]
        assert (rows[9]["nearest"], rows[9]["adopt"], rows[9]["engine"]) == (None, None, None)
        assert document["exit_code"] == 0
