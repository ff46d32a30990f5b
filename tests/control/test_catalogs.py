"""A catalog that does not parse never replaces a good one (F11, A58)."""

import pytest

from llmgw.errors import CatalogError
from tests.control.bench import CATALOG, Agent, Bench, engine, scenario

BROKEN = "version: 1\nmodels: {alpha: {scalling: {min: 1}}}\n"


@scenario
async def test_a_reload_swaps_it_and_says_what_changes(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        bench.catalog.write_text(CATALOG.replace("[first]", "[first, second]"))
        assert (await bench.post("/api/v1/catalog"))["version"] == control.state.catalog.digest[:12]
        assert [e.get("effect") for e in bench.events("catalog")] == ["live", None]
        table = await bench.get("/gateway/v1/routes?version=0")
        assert table["models"]["alpha"]["aliases"] == ["first", "second"]


@scenario
async def test_a_broken_file_leaves_the_one_in_use(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        bench.catalog.write_text(BROKEN)
        said = await bench.post("/api/v1/catalog", status=400)
        assert any('unknown key "scalling"' in p for p in said["error"]["problems"])
        status = await bench.get("/api/v1/status")
        assert status["catalog"]["error"].splitlines() == said["error"]["problems"]
        assert [r["state"] for r in status["replicas"]] == ["ready"]
        await bench.passes(130, agent)
        assert bench.orders(agent) == []
        bench.catalog.write_text(CATALOG)
        await bench.post("/api/v1/catalog")
        assert (await bench.get("/api/v1/status"))["catalog"]["error"] is None


@scenario
async def test_f11_a_start_with_a_broken_file_runs_on_the_last_good_one(bench: Bench) -> None:
    agent = Agent(bench)
    agent.runs(engine())
    async with bench.running():
        await agent.register()
    for spoil in (lambda: bench.catalog.write_text(BROKEN), bench.catalog.unlink):
        spoil()
        async with bench.running() as control:
            assert await agent.register() == {"alpha-1/0": "adopt"}
            assert (await bench.get("/api/v1/status"))["catalog"]["error"]
            assert list(control.state.catalog.models) == ["alpha"]


@scenario
async def test_without_a_last_good_one_control_does_not_start(bench: Bench) -> None:
    bench.catalog.write_text(BROKEN)
    with pytest.raises(CatalogError, match=r"catalog\.yaml:2"):
        async with bench.running():
            pass
