"""A real agent process, a fake control and real engine processes for one test; nothing of it is left behind.

Answers for: starting and killing the agent, commands in short, and the end of every process that carries the agent's
markers. It may not know what is tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmgw.agent import process
from llmgw.core.types.catalog import Ready, Restart, Stop
from llmgw.core.types.messages import DrainShard, ForgetShard, Start, StopShard
from scripts.ports import free_port
from tests.agent.fake_control import FakeControl
from tests.engines.running import FAKE
from tests.nursery import AGENT, Child, forked, nursery

PROGRAM = Path(__file__).with_name("agent_program.py")
ROOT = Path(__file__).resolve().parents[2]


class Rig:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.state_dir = folder / "agent"
        self.control = FakeControl(token=settings.get("control_token", ""))
        settings.pop("control_token", None)
        self.settings = {
            "controls": [self.control.url],
            "node": "box1",
            "state_dir": str(self.state_dir),
            "listen": f"127.0.0.1:{free_port()}",
            "gpus": "none",
            **settings,
        }
        self.agent: subprocess.Popen[str] | Child | None = None
        self.logs = 0

    # ------------------------------------------------ the agent

    def start_agent(self, crash_at: str = "", wrap: Sequence[str] = (), **env: str) -> Rig:
        """`wrap`: a command line that ends in executing the one that it is given."""
        self.logs += 1
        settings = json.dumps(self.settings)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "LLMGW_CRASH_AT": crash_at, **env}
        if not wrap and forked(env):
            self.agent = nursery().start([AGENT, settings], env, self.log_path())
            return self
        with self.log_path().open("w") as log:
            self.agent = subprocess.Popen(
                [*wrap, sys.executable, str(PROGRAM), settings],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        return self

    def registered(self, count: int = 1) -> Rig:
        try:
            self.control.wait(lambda: len(self.control.registers) >= count, f"register {count}")
        except AssertionError as e:
            msg = f"{e}; the agent ended with {self.agent and self.agent.poll()} and said: {self.log()[-2000:]}"
            raise AssertionError(msg) from None
        return self

    def kill9(self) -> Rig:
        """The agent dies; the next one has to find everything."""
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()
        return self

    def crashed(self) -> Rig:
        """It killed itself at its crash point."""
        assert self.agent is not None
        assert self.agent.wait(60) == -signal.SIGKILL, self.log()
        return self

    def again(self) -> Rig:
        """A new agent process, registered."""
        return self.start_agent().registered(len(self.control.registers) + 1)

    def ended(self) -> tuple[int, str]:
        """Exit code and log of an agent that ends by itself."""
        assert self.agent is not None
        return self.agent.wait(60), self.log()

    def log_path(self) -> Path:
        return self.folder / f"agent-{self.logs}.log"

    def log(self) -> str:
        return self.log_path().read_text()

    def said(self, words: str, timeout_s: float = 60.0) -> str:
        """The first log line with these words."""

        def line() -> str:
            return next((x for x in self.log().splitlines() if words in x), "")

        return str(until(line, words, timeout_s))

    # ------------------------------------------------ engines

    def start(self, n: int = 1, *flags: str, **changes: Any) -> Start:
        """Order a fake engine; the port is a free one unless told."""
        base: dict[str, Any] = {
            "shard": f"alpha-{n}/0",
            "replica": f"alpha-{n}",
            "incarnation": f"inc-{n}",
            "model": "alpha",
            "profile": "main",
            "command": (*FAKE, "--port", "${port}", "--host", "${host}", *flags),
            "port": free_port(),
            "stop": Stop(grace_s=10.0),
            "restart": Restart(max=3, backoff_s=0.2),
            "ready": Ready(failures=3, of=5),
            "start_timeout_s": 30.0,
        }
        start = Start(**{**base, **changes})
        self.control.send(start)
        return start

    def ready(self, n: int = 1, *flags: str, **changes: Any) -> dict[str, Any]:
        start = self.start(n, *flags, **changes)
        return self.control.shard(start.shard, "ready")

    def stop(self, n: int = 1, **changes: Any) -> None:
        base: dict[str, Any] = {
            "shard": f"alpha-{n}/0",
            "incarnation": f"inc-{n}",
            "reason": "test",
        }
        self.control.send(StopShard(**{**base, **changes}))

    def drain(self, n: int = 1) -> None:
        self.control.send(DrainShard(shard=f"alpha-{n}/0", incarnation=f"inc-{n}", reason="test"))

    def forget(self, n: int = 1) -> None:
        self.control.send(ForgetShard(shard=f"alpha-{n}/0", incarnation=f"inc-{n}"))

    def record_path(self, n: int = 1) -> Path:
        return self.state_dir / "records" / f"alpha-{n}@0@inc-{n}.json"

    def record(self, n: int = 1) -> dict[str, Any]:
        return dict(json.loads(self.record_path(n).read_text()))

    def engine_log(self, n: int = 1) -> str:
        """What it said so far; nothing where it has not begun."""
        path = self.state_dir / f"logs/alpha-{n}/0.log"
        return path.read_text() if path.exists() else ""

    def engine_pids(self) -> list[int]:
        """Every live process that carries this agent's markers."""
        path = self.state_dir / "identity.json"
        if not path.exists():
            return []
        node_id = json.loads(path.read_text())["node_id"]
        marks = process.sweep(node_id, process.all_stats())
        return sorted(m.stat.pid for some in marks.values() for m in some)

    def starts(self, shard: str = "alpha-1/0") -> set[int]:
        """Attempts that were ever reported as starting."""
        return {a for s, state, a in self.control.history if s == shard and state == "starting"}

    def close(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.kill9()
        for pid in self.engine_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.control.close()


def gpu_users(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Strangers on GPUs; engines of other tests on this host may be told of besides (A70)."""
    return [f for f in message["foreign"] or () if f["gpu"]]


def until(test: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """For what nobody tells us: the state of a process or a file."""
    end = time.monotonic() + timeout_s
    while not (found := test()):
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    stat = process.read_stat(pid)
    return stat is not None and stat.live
