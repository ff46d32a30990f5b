"""A plan says the same twice while nothing changes: no sentence of the core brings its running seconds into it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import llmgw.core
from llmgw.render.page import plain
from llmgw.render.plan import page
from llmgw.wire.steady import steady
from tests.control.bench import ON_DEMAND, Agent, Bench, engine, scenario
from tests.control.test_wake import ONE, OTHER, WAKE

CORE = Path(llmgw.core.__file__).parent
#: What an agent says of its own, and a warning of `status`: no part of a plan.
ELSEWHERE = ("supervise/", "lost.py")
RUNNING = re.compile(r"\b7 s\b")


def sentences() -> Iterator[tuple[str, str]]:
    """Every text of the core that counts seconds with `:.0f` or as `…_s`, each figure in it as 7."""
    for file in sorted(CORE.rglob("*.py")):
        where = str(file.relative_to(CORE))
        if where.startswith(ELSEWHERE):
            continue
        for found in ast.walk(ast.parse(file.read_text())):
            if isinstance(found, ast.JoinedStr):
                said = "".join(map(_shown, found.values))
                if RUNNING.search(said):
                    yield where, said


def _shown(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    spec = "" if part.format_spec is None else ast.unparse(part.format_spec)
    if "g" in spec.split(".")[0] or (".0f" not in spec and not _seconds(part.value)):
        return "10"  # a limit out of the catalog, a count: it does not run
    return "7"


def _seconds(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id.endswith("_s")


def test_whatever_counts_seconds_in_the_core_is_left_out_of_a_plan() -> None:
    found = list(sentences())
    assert len(found) >= 8, "the core counts, or this test does not see it any more"
    # `_ago` is the end of two sentences; on its own it has no verb.
    left = [(w, s) for w, s in found if RUNNING.search(steady(f"failed {s}"))]
    assert left == [], "say it in llmgw/wire/steady.py too"


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("woken 58 s ago, 0 running; box1: no", "woken by an operator, 0 running; box1: no"),
        ("makes room for a, waited for 4 s; idle for 62 s", "makes room for a; idle"),
        ("it failed 12 s ago (exit 1)", "it failed a short while ago (exit 1)"),
        (
            "box1 is drained since 2026-01-01T00:00:00Z",
            "box1 is drained since 2026-01-01T00:00:00Z",
        ),
        ("drained for 120 s, the limit", "drained for 120 s, the limit"),
    ],
)
def test_what_does_not_run_stays(why: str, said: str) -> None:
    assert steady(why) == said


@scenario
async def test_two_dry_runs_of_an_unchanged_fleet_are_the_same(bench: Bench) -> None:
    """People compare them before a restart; only the time of it is another."""
    bench.catalog.write_text(ON_DEMAND + OTHER)
    async with bench.running():
        agent = Agent(bench, capacity=ONE)
        agent.runs(engine("beta-1", model="beta"))
        await agent.register()
        await bench.passes(60, agent)
        await bench.post("/api/v1/pause")
        await bench.post(WAKE.format("huge"))
        await bench.post(WAKE.format("alpha"))
        await bench.passes(4, agent)
        shown = []
        for _ in range(3):
            await bench.passes(2, agent)
            plan = await bench.get("/api/v1/plan")
            assert plan.pop("generated_at")
            shown.append(json.dumps(plan, indent=2) + plain(page(plan)))
        assert shown[0] == shown[1] == shown[2]
        assert "woken by an operator" in shown[0]
        assert "beta-1 is busy (control has just started, a gateway may not have said" in shown[0]
