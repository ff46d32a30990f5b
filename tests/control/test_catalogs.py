"""A catalog that does not parse never replaces a good one (F11, A58)."""

import pytest
from msgspec.structs import replace

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


@scenario
async def test_a58_one_that_is_sent_is_written_as_one_step_and_the_old_one_kept(
    bench: Bench,
) -> None:
    async with bench.running() as control:
        bench.catalog.chmod(0o640)
        new = CATALOG.replace("[first]", "[second]")
        for sent, changes in ((new, 1), ({"some/where.yaml": new}, 0)):
            said = await bench.client.put("/api/v1/catalog", json={"catalog": sent})
            assert said.status_code == 200, said.text
            assert len(said.json()["changes"]) == changes
        assert bench.catalog.read_text() == new
        assert bench.catalog.stat().st_mode & 0o777 == 0o640
        assert control.state.catalog.models["alpha"].aliases == ("second",)
        kept = bench.catalog.with_name("catalog.yaml.bak")
        assert kept.read_text() == new
        back = await bench.client.put("/api/v1/catalog", json={"catalog": CATALOG})
        assert back.json()["changes"] == ["alpha: aliases: second -> first (live)"]
        assert kept.read_text() == new
        assert {p.name for p in bench.folder.iterdir() if "catalog" in p.name} == {
            "catalog.yaml",
            "catalog.yaml.bak",
        }


@scenario
async def test_a58_one_that_is_sent_with_a_mistake_changes_nothing(bench: Bench) -> None:
    async with bench.running():
        for sent, status in ((BROKEN, 400), ({"a": CATALOG, "b": CATALOG}, 400), (7, 400)):
            said = await bench.client.put("/api/v1/catalog", json={"catalog": sent})
            assert said.status_code == status, said.text
        assert bench.catalog.read_text() == CATALOG
        found = await bench.get("/api/v1/status")
        assert found["catalog"]["error"] is None  # what is in use is what is on disk
        digest = f"sha256:{'0' * 64}"
        other = CATALOG.replace("alpha", "beta")
        body = {"catalog": other, "confirm": True, "digest": digest}
        said = await bench.client.put("/api/v1/catalog", json=body)
        assert said.status_code == 409
        assert bench.catalog.read_text() == CATALOG


@scenario
async def test_a_folder_of_files_is_not_written_to(bench: Bench) -> None:
    folder = bench.folder / "catalog.d"
    folder.mkdir()
    (folder / "a.yaml").write_text(CATALOG)
    bench.settings = replace(bench.settings, catalog=folder)
    async with bench.running():
        said = await bench.client.put("/api/v1/catalog", json={"catalog": CATALOG})
        assert said.status_code == 409
        assert "copy the file there" in said.json()["error"]["hint"]
        assert [p.name for p in folder.iterdir()] == ["a.yaml"]


@scenario
async def test_a_link_to_the_catalog_stays_one(bench: Bench) -> None:
    real = bench.folder / "real.yaml"
    bench.catalog.rename(real)
    bench.catalog.symlink_to(real)
    async with bench.running():
        new = CATALOG.replace("[first]", "[second]")
        said = await bench.client.put("/api/v1/catalog", json={"catalog": new})
        assert bench.catalog.is_symlink()
        assert real.read_text() == new
        kept = bench.catalog.with_name("real.yaml.bak")
        assert kept.read_text() == CATALOG
        assert said.json()["old"] == str(kept.resolve())
        again = await bench.client.post("/api/v1/catalog")
        assert again.json()["old"] is None, "nothing was written"


@scenario
async def test_a49_a_yes_to_a_catalog_lapses_with_it(bench: Bench) -> None:
    """A catalog that was taken back had made the whole fleet fair game for the next mistake."""
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        agent.runs(engine("gone-1", model="gone", port=18100))
        await agent.register()
        other = CATALOG.replace("alpha:", "beta:")
        shown = (await bench.post("/api/v1/plan", {"catalog": other}))["digest"]
        body = {"catalog": other, "confirm": True, "digest": shown}
        assert (await bench.client.put("/api/v1/catalog", json=body)).status_code == 200
        assert control.state.confirmed == {"inc-alpha-1", "inc-gone-1"}
        bench.catalog.write_text(CATALOG)
        await bench.post("/api/v1/catalog")
        assert control.state.confirmed == {"inc-gone-1"}
    async with bench.running(crash=True) as control:
        await agent.register()
        assert control.state.confirmed == {"inc-gone-1"}
        bench.catalog.write_text(CATALOG.replace("alpha:", "gone:"))
        await bench.post("/api/v1/catalog")
        assert control.state.confirmed == frozenset()


@scenario
async def test_the_plan_for_another_catalog_says_what_changes(bench: Bench) -> None:
    async with bench.running():
        assert (await bench.get("/api/v1/plan"))["changes"] == []
        bench.catalog.write_text(CATALOG.replace("alpha:", "beta:"))
        found = (await bench.get("/api/v1/plan"))["changes"]
        assert found == [
            "alpha: removed: its engines will be stopped",
            "beta: added",
        ]
