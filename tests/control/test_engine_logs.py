"""A log that no agent has: said is what was probably meant, and whether there ever was one."""

from __future__ import annotations

import pytest

from llmgw.control import engine_logs
from tests.control.bench import Agent, Bench, engine, scenario

ENDED = "`llmgw status` shows what there is; `llmgw events` names those that ended"


@pytest.fixture(autouse=True)
def _none_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every agent that is asked has no such log."""

    async def open_(_: object) -> int:
        return 404

    monkeypatch.setattr(engine_logs._Stream, "open", open_)


async def said(bench: Bench, path: str) -> tuple[str, str]:
    found = (await bench.get(f"/api/v1/logs/{path}", status=404))["error"]
    assert found["code"] == "not_found"
    return found["message"], found["hint"]


@scenario
async def test_a_name_that_nobody_knows_is_answered_with_the_nearest(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench, inspect="https://box1:8802")
        agent.runs(engine())
        await agent.register()
        nope = "there is no model or replica called"
        assert await said(bench, "nope/0") == (f"{nope} nope", f"known: alpha, alpha-1; {ENDED}")
        assert await said(bench, "alpah/0") == (f"{nope} alpah", f"did you mean alpha? {ENDED}")
        assert await said(bench, "alpha/0") == ("no agent has a log of alpha/0", ENDED)


@scenario
async def test_of_a_first_attempt_there_is_none_before(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench, inspect="https://box1:8802")
        agent.runs(engine())
        await agent.register()
        shard = engine().shard
        before = await said(bench, f"{shard}?previous=1")
        assert before == (f"{shard} has no attempt before this one", ENDED)
        assert await said(bench, shard) == (f"{shard} has written nothing yet", ENDED)


@scenario
async def test_what_never_wrote_a_line_says_why_it_ended(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench, inspect="https://box1:8802")
        lost = "engine binary x is not on the PATH of box1"
        agent.runs(engine(state="failed", error=lost, endpoint=""))
        await agent.register()
        shard = engine().shard
        assert await said(bench, shard) == (f"{shard} has written nothing: {lost}", ENDED)


@scenario
async def test_who_is_on_the_very_box_is_told_which_folder_to_name(bench: Bench) -> None:
    """An agent on loopback is found by its state folder, which may be another one than the command line's."""
    async with bench.running():
        agent = Agent(bench, inspect="")
        agent.runs(engine())
        await agent.register()
        found = (await bench.get(f"/api/v1/logs/{engine().shard}", status=503))["error"]
        assert "with LLMGW_STATE_DIR set to the folder its agent was started with" in found["hint"]
