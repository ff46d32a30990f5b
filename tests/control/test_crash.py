"""Control killed around everything that others see: the next one converges, and an engine is started once (F1-F3).

And the points themselves: every one is in the code and every one in the code is listed, for control and agent. All of
them, with real agents and engines, are tried by tests/e2e/test_crash_matrix.py.
"""

import ast
import asyncio
import fnmatch
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from llmgw import handover
from llmgw.agent import crash as of_agent
from llmgw.control import crash as of_control
from llmgw.core.types.messages import ForgetShard, Start, Token
from llmgw.core.types.node import (
    DeleteRecord,
    Effect,
    Identify,
    Look,
    Measure,
    Signal,
    Spawn,
    StoreToken,
    WriteRecord,
)
from llmgw.core.types.record import Record
from llmgw.errors import LlmgwError, UsageError
from tests.control.bench import CATALOG, SOON_S, Agent, started
from tests.control.box import ROOT, Box

POINTS = (
    "before_epoch",
    "after_epoch",
    "before_persist",
    "after_persist",
    "after_send",
    "before_publish:2",
    "after_publish:2",
    "before_answer:2",
    "before_answer:3",
)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * SOON_S):
            await story()

    asyncio.run(bounded())


class Node:
    """An agent with a journal: what it was told to start runs, whatever becomes of control."""

    def __init__(self, box: Box) -> None:
        self.agent = Agent(box)
        self.starts: list[Start] = []

    async def lives(self) -> None:
        """Register, obey, report; until its model is loaded or control is gone (TransportError)."""
        await self.agent.register()
        while not await self._loaded():
            for command in await self.agent.poll():
                if isinstance(command, Start):
                    self.starts.append(command)
                    self.agent.runs(started(command))
                    await self.agent.tell(started(command))
                elif isinstance(command, ForgetShard):
                    await self.agent.tell(gone=((command.shard, command.incarnation),))

    async def _loaded(self) -> bool:
        status = (await self.agent.bench.client.get("/api/v1/status")).json()
        return bool(status["models"][0]["ready"])


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(point: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            node = Node(box)
            process = box.start(crash=point)
            try:
                await box.until(lambda: process.poll() is not None or box.get("/healthz"))
                await node.lives()
            except httpx.TransportError:
                pass
            assert await box.ended(process) == -9, box.said()
            box.start()
            await box.up()
            await node.lives()
            status = await box.get("/api/v1/status")
            assert [r["state"] for r in status["replicas"]] == ["ready"], status
            assert len(node.starts) == 1, box.said()
            assert (await box.get("/api/v1/plan"))["exit_code"] == 0

    run(story)


def test_f6_ten_kills_in_a_row_start_nothing_twice(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            node = Node(box)
            process = box.start()
            await box.up()
            await node.lives()
            epochs = []
            for _ in range(10):
                process.kill()
                await box.ended(process)
                process = box.start()
                await box.up()
                assert await node.agent.register() == {node.starts[0].shard: "adopt"}
                epochs.append(node.agent.said.epoch)
            assert epochs == sorted(set(epochs))
            assert len(node.starts) == 1
            await node.agent.tell()
            assert (await box.get("/api/v1/plan"))["exit_code"] == 0

    run(story)


def test_a_reload_asked_for_while_control_starts_is_not_lost(tmp_path: Path) -> None:
    """F6, A58: between reading its catalog and hearing signals a start may take seconds, where its gateway hangs."""

    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            process = box.start()
            await box.up()
            found = await box.until(lambda: gateway(box))
            os.kill(found.pid, signal.SIGSTOP)
            process.kill()
            await box.ended(process)
            process = box.start()
            try:
                await box.until(lambda: box.said().count("leads with epoch") == 2)
                box.catalog.write_text(CATALOG.replace("alpha", "beta"))
                process.send_signal(signal.SIGHUP)
            finally:
                os.kill(found.pid, signal.SIGCONT)
            await box.until(lambda: "is in use" in box.said())
            status = await box.get("/api/v1/status")
            assert [m["name"] for m in status["models"]] == ["beta"]
            assert gateway(box) == found

    run(story)


def gateway(box: Box) -> handover.Hello | None:
    try:
        return replace(handover.hello(box.state / "gateway"), table=0)
    except LlmgwError:
        return None


# ---------------------------------------------------------------- the lists


def uses(folder: str, *doors: str) -> Iterator[str]:
    """What stands in a call of one of these, as a pattern: `after_send_*` for an f-string."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in doors:
                first = node.args[0]
                if isinstance(first, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else "*" for v in first.values)
                    yield "".join(map(str, parts))
                else:
                    said = (c.value for c in ast.walk(first) if isinstance(c, ast.Constant))
                    yield from (name for name in said if isinstance(name, str))


def agree(points: Iterable[str], patterns: set[str]) -> None:
    listed = set(points)
    unused = [p for p in listed if not any(fnmatch.fnmatchcase(p, use) for use in patterns)]
    unknown = [use for use in patterns if not fnmatch.filter(listed, use)]
    assert not unused, "a listed point that nobody passes tests nothing"
    assert not unknown, "a point that is not listed is in no matrix"


def test_every_point_of_control_is_in_its_code_and_in_the_list() -> None:
    agree(of_control.CRASH_POINTS, set(uses("llmgw/control", "crash")))


#: One effect for each point that is made from an effect.
RECORD = Record(
    start=Start(shard="a/0", replica="a", incarnation="i", model="a", profile="p", rank=0)
)
EFFECTS: dict[str, Effect] = {
    "WriteRecord-intent": WriteRecord(replace(RECORD, intent=True)),
    "WriteRecord-started": WriteRecord(replace(RECORD, state="starting", pid=7)),
    "WriteRecord-change": WriteRecord(replace(RECORD, state="ready", pid=7)),
    "WriteRecord-exit": WriteRecord(replace(RECORD, state="stopping", pid=7, ending="stopped")),
    "Signal-TERM": Signal(RECORD, "TERM"),
    "Signal-KILL": Signal(RECORD, "KILL"),
    "StoreToken": StoreToken(Token(1, "u")),
    "DeleteRecord": DeleteRecord(RECORD.key),
    "Spawn": Spawn(RECORD),
    "Look": Look(RECORD),
    "Measure": Measure(RECORD),
    "Identify": Identify(RECORD),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_an_effect_is_passed_by_its_kind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []
    monkeypatch.setattr(of_agent, "_left", {"armed": 1})
    monkeypatch.setattr(of_agent, "here", passed.append)
    of_agent.around("before", EFFECTS[name])
    assert passed == [f"before-{x}" for x in sorted({name.partition("-")[0], name})]


def test_every_point_of_the_agent_is_in_its_code_and_in_the_list() -> None:
    made = {f"{when}-{x}" for when in uses("llmgw/agent", "crash.around") for x in effect_names()}
    agree(of_agent.POINTS, set(uses("llmgw/agent", "crash.here")) | made)


def effect_names() -> set[str]:
    return {*EFFECTS, *(name.partition("-")[0] for name in EFFECTS)}


@pytest.mark.parametrize("wanted", [of_control.wanted, of_agent.wanted], ids=["control", "agent"])
def test_a_point_that_is_none_is_refused_with_those_there_are(
    wanted: Callable[[str], dict[str, int]],
) -> None:
    assert wanted("") == {}
    with pytest.raises(UsageError, match=r"at-lunch: .* has no such point") as e:
        wanted("at-lunch")
    points = of_control.CRASH_POINTS if wanted is of_control.wanted else of_agent.POINTS
    assert all(name in e.value.hint for name in points)
    assert wanted(points[0]) == {points[0]: 1}
    assert wanted(f"{points[0]}:3") == {points[0]: 3}
    for count in ("", "0", "-1", "x"):
        with pytest.raises(UsageError, match="is not a count of passings"):
            wanted(f"{points[0]}:{count}")


@pytest.mark.parametrize("part", ["control", "agent"])
def test_llmgw_refuses_it_at_the_start(part: str, tmp_path: Path) -> None:
    """Before anything is taken: no folder, no lock, no port."""
    env = {**os.environ, "LLMGW_STATE_DIR": str(tmp_path / "state"), "LLMGW_CRASH_AT": "at-lunch"}
    command = [sys.executable, "-m", "llmgw", part]
    said = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert said.stderr.startswith("llmgw: LLMGW_CRASH_AT=at-lunch")
    assert "hint: it has" in said.stderr
    assert not (tmp_path / "state").exists()
