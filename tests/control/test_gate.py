"""`llmgw control --require-plan`: the plan that was looked at, or nothing until a yes (A56, A57)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.control.settings import ControlSettings
from llmgw.core.types.messages import DrainShard
from llmgw.errors import UsageError
from tests.control.bench import CATALOG, Agent, Bench, engine, scenario

TWO = CATALOG + CATALOG.partition("models:\n")[2].replace("alpha", "beta").replace("[first]", "[]")
OTHER = f"sha256:{'0' * 64}"


async def before(bench: Bench, agent: Agent) -> str:
    """A control that ran, the catalog edited after it, and the digest that the dry run prints for its restart."""
    async with bench.running():
        agent.runs(engine())
        await agent.register()
        bench.catalog.write_text(TWO)
        plan = await bench.get("/api/v1/plan")
        assert plan["summary"]["start"] == 1
        digest: str = plan["digest"]
        return digest


def requires(bench: Bench, digest: str) -> None:
    bench.settings = replace(bench.settings, require_plan=digest)


async def status(bench: Bench) -> Any:
    return await bench.get("/api/v1/status")


@scenario
async def test_a56_the_plan_that_was_shown_is_carried_out(bench: Bench) -> None:
    agent = Agent(bench)
    digest = await before(bench, agent)
    requires(bench, digest)
    async with bench.running():
        said = await status(bench)
        assert said["blocked"] == f"the plan {digest} is required, settling is not over"
        assert said["confirm"] is None
        assert await agent.register() == {"alpha-1/0": "adopt"}
        assert (await status(bench))["blocked"] is None
        assert (await agent.start_one()).model == "beta"
        assert [e["kind"] for e in bench.control.story.events if "digest" in e] == []
        assert len(bench.events("released")) == 1
    async with bench.running():  # the flag is given anew at each start
        await agent.register()
        assert "is required: nothing is started" in (await status(bench))["blocked"]


@scenario
async def test_a56_another_world_is_adopted_and_routed_and_nothing_else(bench: Bench) -> None:
    agent = Agent(bench)
    digest = await before(bench, agent)
    requires(bench, digest)
    agent.shards.clear()
    agent.runs(engine("gone-1", model="gone", port=18100))
    agent.runs(engine("beta-1", model="beta", port=18101))
    async with bench.running():
        await agent.register()
        await bench.passes(130, agent)
        assert bench.orders(agent) == []
        said = await status(bench)
        found = said["confirm"]
        assert said["blocked"] == (
            f"the plan is {found}, and {digest} is required: nothing is started or ended; "
            f"llmgw confirm {found} lets it be carried out"
        )
        assert {s["withheld"] for s in said["stops_pending"]} == {said["blocked"]}
        table = await bench.get("/gateway/v1/routes?version=0")
        assert [r["replica"] for r in table["models"]["beta"]["replicas"]] == ["beta-1"]
        for wrong in (digest, OTHER):
            refused = await bench.post("/api/v1/confirm", {"digest": wrong}, status=409)
            assert found in refused["error"]["message"]
        assert bench.orders(agent) == []
        await bench.post("/api/v1/confirm", {"digest": found})
        assert sorted(bench.orders(agent)) == ["drain", "start"]
        assert (await status(bench))["blocked"] is None
        told = [(e["kind"], e.get("digest")) for e in bench.control.story.events]
        assert told.count(("blocked", found)) == 1
        assert told.count(("confirmed", found)) == 1


@scenario
async def test_a56_the_plan_of_the_moment_is_what_can_be_confirmed(bench: Bench) -> None:
    """The world goes on while it is withheld, and yesterday's plan is not what would be done."""
    agent = Agent(bench)
    requires(bench, OTHER if await before(bench, agent) else "")
    async with bench.running():
        await agent.register()
        first = (await status(bench))["confirm"]
        agent.runs(engine("gone-1", model="gone", port=18100))
        await agent.register()
        refused = await bench.post("/api/v1/confirm", {"digest": first}, status=409)
        second = (await status(bench))["confirm"]
        assert second != first
        assert second in refused["error"]["message"]
        assert second == (await bench.get("/api/v1/plan"))["digest"]
        await bench.post("/api/v1/confirm", {"digest": second})
        assert "start" in bench.orders(agent)


@scenario
async def test_a56_what_was_lost_at_the_start_is_in_the_plan_and_its_dry_run_counts_too(
    bench: Bench,
) -> None:
    """A forget that is recorded is in the plan of the start and no more in that of the moment: either is a yes."""
    for which in ("start", "moment"):
        bench.settings = replace(bench.settings, require_plan="")
        agent = Agent(bench)
        digest = await before(bench, agent)
        requires(bench, digest)
        agent.shards.clear()
        async with bench.running():
            await agent.register()
            await bench.later(1)
            found = (await status(bench))["confirm"]
            now = (await bench.get("/api/v1/plan"))["digest"]
            assert len({digest, found, now}) == 3
            await bench.post("/api/v1/confirm", {"digest": found if which == "start" else now})
            assert (await status(bench))["blocked"] is None
        bench.inventory.unlink()
        bench.catalog.write_text(CATALOG)


@scenario
async def test_a56_a_yes_to_the_plan_is_one_to_what_the_guard_holds_in_it(bench: Bench) -> None:
    agent = Agent(bench)
    await before(bench, agent)
    requires(bench, OTHER)
    for n in range(4):
        agent.runs(engine(f"gone-{n}", model="gone", port=18100 + n))
    async with bench.running():
        await agent.register()
        await bench.passes(70, agent)
        found = (await status(bench))["confirm"]
        said = await bench.post("/api/v1/confirm", {"digest": found})
        assert said["engines"] == [f"gone-{n}" for n in range(4)]
        queue = bench.control.sessions.get(agent.session).queue.values()
        assert len([c for c in queue if isinstance(c, DrainShard)]) == 4


@scenario
async def test_a56_a_drain_of_an_earlier_control_waits_too_and_the_operators_does_not(
    bench: Bench,
) -> None:
    agent = Agent(bench)
    agent.runs(engine())
    agent.runs(engine("gone-1", model="gone", port=18100))
    async with bench.running():
        await agent.register()
        await bench.passes(70, agent)
        assert "inc-gone-1" in bench.control.state.draining
    requires(bench, OTHER)
    async with bench.running(crash=True):
        await agent.register()
        await bench.later(6)
        assert bench.orders(agent) == []
        await bench.post("/api/v1/replicas/alpha-1/stop")
        queue = bench.control.sessions.get(agent.session).queue.values()
        assert [c.shard for c in queue if isinstance(c, DrainShard)] == ["alpha-1/0"]
        await bench.demand(1)
        await bench.serves(5, agent)
        await agent.stop_one()
        await bench.later(6)
        assert "start" not in bench.orders(agent)
        assert "forget" not in bench.orders(agent)


@scenario
async def test_a56_it_lasts_while_the_lead_is_lost_and_taken_again(bench: Bench) -> None:
    agent = Agent(bench)
    await before(bench, agent)
    requires(bench, OTHER)
    async with bench.running() as control:
        await agent.register()
        found = (await status(bench))["confirm"]
        control.leading = False
        await bench.later(1)
        await agent.register()
        assert control.leading
        assert control.state.withheld
        assert bench.orders(agent) == []
        await bench.post("/api/v1/confirm", {"digest": found})
        control.leading = False
        await bench.later(1)
        assert not control.state.withheld


@scenario
async def test_a56_failures_of_before_count_at_their_age(bench: Bench) -> None:
    """The plan stands on the clock of a control that starts now; a start that backs off is in neither plan."""
    bench.clock.now = 500_000.0
    agent = Agent(bench)
    async with bench.running():
        await agent.register()
        for _ in range(2):
            shard = await agent.start_one("loading")
            await agent.tell(replace(shard, state="failed", error="exit 1"))
        await bench.later(1)
        assert (await bench.get("/api/v1/plan"))["summary"]["wait"] == 1
        digest = (await bench.get("/api/v1/plan"))["digest"]
    requires(bench, digest)
    async with bench.running():
        await agent.register()
        assert (await status(bench))["blocked"] is None


@pytest.mark.parametrize("digest", ["9f", "sha256:9f", "sha256:" + "G" * 64, "a" * 64])
def test_a_digest_that_is_none_is_refused_at_the_start(digest: str, bench_settings: Any) -> None:
    with pytest.raises(UsageError, match="is no digest of a plan") as refused:
        replace(bench_settings, require_plan=digest).check()
    assert "adopt --dry-run" in refused.value.hint


@pytest.fixture
def bench_settings(tmp_path: Any) -> ControlSettings:
    return ControlSettings(catalog=tmp_path, state_dir=tmp_path)
