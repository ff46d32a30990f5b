"""Agents as processes of their own, engines as processes of theirs, over real HTTP; control's clock is the test's.

F51-F54, F60: stopped with its connections open, started twice, copied, renamed. No engine may notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from llmgw.control.api import app
from llmgw.control.guard import Tokens
from llmgw.control.main import Server
from tests.agent.rig import Rig, alive
from tests.control.bench import CATALOG, Bench, scenario
from tests.control.pair import until
from tests.engines.running import FAKE


class Fleet:
    """A control over a port, and agents that are told its URL."""

    def __init__(self, bench: Bench, url: str) -> None:
        self.bench = bench
        self.url = url

    def agent(self, name: str, **settings: Any) -> Rig:
        folder = self.bench.folder / name
        folder.mkdir(exist_ok=True)
        # A range of its own: the default one may be somebody else's on this machine.
        base = {"controls": [self.url], "node": name, "ports": [23500, 23599], "listen": "none"}
        return Rig(folder, **{**base, **settings})

    async def ready(self, rig: Rig) -> dict[str, Any]:
        """The engine of this agent, once it is ready and routed."""
        nodes = self.bench.control.state.nodes

        def found() -> Any:
            node = self.bench.control.state.nodes.get(rig.settings["node"])
            there = [s for s in node.shards if s.report.state == "ready"] if node else []
            return there[0].report if there else None

        report = await until(found, f"ready on {rig.settings['node']} of {list(nodes)}")
        await self.bench.later(0)
        return {"pid": report.pid, "endpoint": report.endpoint, "shard": report.shard}

    def routed(self) -> list[str]:
        return [r.endpoint for r in self.bench.control.routes.models["alpha"].replicas]

    async def later(self, seconds: float) -> None:
        await self.bench.later(seconds)


@contextlib.asynccontextmanager
async def served(bench: Bench) -> AsyncIterator[Fleet]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        api = app(bench.control, Tokens("", [""]), shut_down=lambda: None)
        config = uvicorn.Config(
            api, http="h11", ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
        )
        server = Server(config)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listener]))
            try:
                yield Fleet(bench, url)
            finally:
                bench.control.sessions.release()
                server.should_exit = True


def fleet(story: Callable[[Fleet, contextlib.ExitStack], Awaitable[None]]) -> Any:
    @scenario
    async def test(bench: Bench) -> None:
        command = json.dumps([*FAKE, "--port", "${port}", "--host", "${host}"])
        bench.catalog.write_text(CATALOG.replace('[/bin/engine, --port, "${port}"]', command))
        with contextlib.ExitStack() as stack:
            async with bench.running(), served(bench) as fleet:
                await story(fleet, stack)

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


def answers(endpoint: str) -> bool:
    return httpx.get(f"{endpoint}/health", trust_env=False).status_code == 200


@fleet
async def test_f60_an_agent_stopped_with_its_connection_open(
    fleet: Fleet, stack: contextlib.ExitStack
) -> None:
    """TCP is up, its long poll is held; its session is over after 15 s, its engine serves on, and it comes back."""
    bench = fleet.bench
    rig = fleet.agent("box1")
    stack.callback(rig.close)
    rig.start_agent()
    engine = await fleet.ready(rig)
    assert rig.agent is not None
    rig.agent.send_signal(signal.SIGSTOP)
    await until(lambda: "T (stopped)" in Path(f"/proc/{rig.agent.pid}/status").read_text())
    await fleet.later(14)
    assert bench.connected("box1")
    await fleet.later(2)
    assert not bench.connected("box1")
    await fleet.later(120)
    assert await asyncio.to_thread(answers, engine["endpoint"])
    assert fleet.routed() == [engine["endpoint"]]
    assert len(bench.events("start")) == 1
    rig.agent.send_signal(signal.SIGCONT)
    await until(lambda: bench.connected("box1"), "it registers again")
    assert await fleet.ready(rig) == engine
    assert rig.engine_pids() == [engine["pid"]]


@fleet
async def test_f52_two_agents_of_one_name(fleet: Fleet, stack: contextlib.ExitStack) -> None:
    """The second is refused with both addresses and says so once; the first and its engine do not notice."""
    first, second = fleet.agent("box1"), fleet.agent("box2", node="box1")
    stack.callback(first.close)
    stack.callback(second.close)
    first.start_agent()
    engine = await fleet.ready(first)
    # With a folder of its own: without one it would know itself by the engines of that name, and not start at all.
    second.state_dir.mkdir(parents=True, exist_ok=True)
    (second.state_dir / "identity.json").write_text(json.dumps({"node_id": "f" * 32}))
    second.start_agent()
    line = await asyncio.to_thread(second.said, "has another node id")
    assert line.count("127.0.0.1") >= 2
    assert "give one of them another name" in line
    assert await fleet.ready(first) == engine
    assert second.engine_pids() == []
    await asyncio.sleep(1)
    assert second.log().count("has another node id") == 1
    node = fleet.bench.control.state.nodes["box1"].report
    assert node.node_id == json.loads((first.state_dir / "identity.json").read_text())["node_id"]


@fleet
async def test_f53_a_cloned_state_dir_on_another_machine(
    fleet: Fleet, stack: contextlib.ExitStack
) -> None:
    """A new node with a new id: what the records tell of is the other machine's, and is neither taken nor touched."""
    first = fleet.agent("box1")
    stack.callback(first.close)
    first.start_agent()
    engine = await fleet.ready(first)
    other = fleet.bench.folder / "machine-id"
    other.write_text("another machine\n")
    clone = fleet.agent("box2", world={"machine_id": str(other)})
    stack.callback(clone.close)
    shutil.copytree(first.state_dir, clone.state_dir)
    clone.start_agent()
    nodes = fleet.bench.control.state
    await until(lambda: "box2" in fleet.bench.control.state.nodes, f"beside {list(nodes.nodes)}")
    state = fleet.bench.control.state
    assert state.nodes["box2"].shards == ()
    assert state.nodes["box2"].report.epoch_seen == 0
    assert state.nodes["box1"].report.node_id != state.nodes["box2"].report.node_id
    assert await fleet.ready(first) == engine
    assert alive(engine["pid"])
    assert clone.engine_pids() == []
    (aside,) = clone.state_dir.glob("records.of-*")
    assert len(list(aside.glob("alpha*.json"))) == 1


@fleet
async def test_f53_a_copied_state_dir_on_the_same_machine(
    fleet: Fleet, stack: contextlib.ExitStack
) -> None:
    """While the first runs the copy does not start; once it is gone the copy is that node, engines and all."""
    first = fleet.agent("box1")
    stack.callback(first.close)
    first.start_agent()
    engine = await fleet.ready(first)
    copy = fleet.agent("box2", node="box1")
    stack.callback(copy.close)
    shutil.copytree(first.state_dir, copy.state_dir)
    copy.start_agent()
    code, said = await asyncio.to_thread(copy.ended)
    assert code == 1
    assert "is a copy: another agent with node id" in said
    assert await fleet.ready(first) == engine
    first.kill9()
    await fleet.later(16)
    copy.start_agent()
    await until(lambda: fleet.bench.connected("box1"), "the copy registers")
    assert await fleet.ready(copy) == engine
    assert len(fleet.bench.events("start")) == 1


@fleet
async def test_f54_an_agent_started_under_another_name(
    fleet: Fleet, stack: contextlib.ExitStack
) -> None:
    bench = fleet.bench
    rig = fleet.agent("box1")
    stack.callback(rig.close)
    rig.start_agent()
    engine = await fleet.ready(rig)
    rig.kill9()
    rig.settings["node"] = "box9"
    rig.start_agent()
    assert await fleet.ready(rig) == engine
    assert list(bench.control.state.nodes) == ["box9"]
    await fleet.later(70)
    assert rig.engine_pids() == [engine["pid"]]
    assert len(bench.events("start")) == 1
    assert not bench.events("stop")
