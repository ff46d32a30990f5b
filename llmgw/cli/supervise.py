"""Keeps the parts of one box running under `llmgw up`: start, relay their log, start again, end.

Answers for: processes in sessions of their own that log to files, so that a `kill -9` of `up` cuts nothing (F47-F49).
It may not know what a part does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from llmgw.cli import ask, first
from llmgw.config import CONTROL_URL
from llmgw.errors import EXIT_INTERRUPTED, EXIT_OK, LlmgwError, UnreachableError

TICK_S = 0.1
#: Pause before a part that died is started again: doubled each time, back to the first after a quiet minute.
FIRST_PAUSE_S, LAST_PAUSE_S, QUIET_S = 1.0, 30.0, 60.0
#: A part gets this long to end by itself after TERM.
END_S = 15.0
#: An agent that was told to end is gone by then.
ALONE_S = 5.0
LOG_BYTES = 8 << 20


class Part:
    """`home`: the word of its command line that no part of another box, or of another state dir, has.

    `before`: what each of its starts needs.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        log: Path,
        home: str,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._before = before
        self._home = home
        self._words = words
        self._log = log
        self._read = 0
        self._rest = b""
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        self.pause_s = FIRST_PAUSE_S
        self.again_s: float | None = None

    def start(self, now: float) -> None:
        """A new log at every start; the one before is kept as `.1`."""
        self._before()
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._log.exists():
                self._log.rename(self._log.with_suffix(".log.1"))
            with self._log.open("ab") as file:  # appending, so that it can be cut short below
                self.process = subprocess.Popen(  # noqa: S603 - our own program
                    [sys.executable, "-m", "llmgw", *self._words],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
        except OSError as e:
            msg = f"cannot start the {self.name}: {self._log.parent}: {(e.strerror or str(e)).lower()}"
            raise LlmgwError(msg, "choose a folder of yours: --state-dir DIR") from e
        self._read, self._rest = 0, b""
        self.started_s, self.again_s = now, None

    def orphan(self) -> int:
        """Its pid in an `up` that was killed and left it behind; 0 for none. That of a living `up` is that one's."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                words = _words(folder.name)
                if words[1:4] == ["-m", "llmgw", self.name] and self._home in words:
                    state, parent, _, session = _stat(folder.name)
                    if state != "Z" and session == folder.name and "up" not in _words(parent)[1:4]:
                        return int(folder.name)
        return 0

    def relay(self) -> None:
        """New whole lines of its log to our stderr."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._read)
                new = file.read(LOG_BYTES)
        except OSError:
            return
        self._read += len(new)
        if self._read >= LOG_BYTES:
            self._log.with_suffix(".log.1").write_bytes(self._log.read_bytes())
            os.truncate(self._log, 0)
            self._read = 0
        *whole, self._rest = (self._rest + new).split(b"\n")
        for line in whole:
            print(f"{self.name:<7} | {line.decode(errors='replace')}", file=sys.stderr, flush=True)  # noqa: T201

    def last_words(self) -> tuple[str, str]:
        """The error and the hint with which it ended, as the door printed them; "" where it said none."""
        error = hint = ""
        for line in self._log.read_text(errors="replace").splitlines():
            if line.startswith("llmgw: "):
                error, hint = line.removeprefix("llmgw: "), ""
            elif line.startswith("hint: "):
                hint = line.removeprefix("hint: ")
        return error, hint

    def where_it_spoke(self) -> str:
        """On a full disk there is a log file, and nothing in it."""
        if self._log.stat().st_size:
            return "what it said is above"
        return f"it could not write a word to {self._log}: is the disk full?"

    def ended(self) -> int | None:
        return self.process.poll() if self.process else None

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def send(self, number: int) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)


class Supervisor:
    """`parts` are started in this order; `peers` say by their address when each, and the gateway, can be used.

    `token`: the operators', where control asks for one by now.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        peers: Mapping[str, ask.Peer],
        token: Callable[[], str],
        brought: first.Brought,
        status: str,
    ) -> None:
        """`status`: the words that show what runs."""
        self._brought = brought
        self._status = status
        self._parts = parts
        self._token = token
        self._peers = peers
        self._ready = False
        self._asked = 0
        self._down = False

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_end)
        signal.signal(signal.SIGHUP, self._on_reload)
        self._alone()
        self._brought.begin(self._peers["gateway"])
        try:
            for part in self._parts:
                part.start(time.monotonic())
            while not self._asked and not self._down:
                self._tick(time.monotonic())
                time.sleep(TICK_S)
        except LlmgwError:
            self._end()
            raise
        running = [] if self._down else self._engines()
        self._end()
        self._farewell(running)
        return EXIT_INTERRUPTED if self._asked == signal.SIGINT else EXIT_OK

    def _alone(self) -> None:
        """Parts that run already are not ours to keep up, and their answers would look like ours."""
        control, agent = (self._peers[name] for name in ("control", "agent"))
        for part in self._parts:
            if pid := part.orphan():
                self._end_orphan(part, pid)
        if _answers(control):
            msg = f"a control answers at {control.place} already"
            hint = (
                "`llmgw status` shows what it runs; `llmgw down` ends it, or choose other addresses"
            )
            raise LlmgwError(msg, hint, code="running")
        # Right after `llmgw down` the agent of the `up` before is still on its way out.
        give_up = time.monotonic() + ALONE_S
        while _answers(agent):
            if time.monotonic() > give_up:
                msg = f"an agent answers at {agent.place} already"
                hint = (
                    f"{_whose(agent)} and leaves its engines; or choose another --agent HOST:PORT"
                )
                raise LlmgwError(msg, hint, code="running")
            time.sleep(TICK_S)
        first.free(control, "control", "--listen")
        first.free(agent, "the agent", "--agent")

    def _end_orphan(self, part: Part, pid: int) -> None:
        """Ended as any restart ends it, engines and gateway go on; then it is started anew, with our settings."""
        say(
            f"the {part.name} (pid {pid}) of an `llmgw up` that was killed still runs: it is started anew"
        )
        give_up = time.monotonic() + END_S
        try:
            os.kill(pid, signal.SIGTERM)
            while _stat(str(pid))[0] not in {"", "Z"}:
                if time.monotonic() > give_up:
                    msg = f"the {part.name} (pid {pid}) of an earlier `llmgw up` does not end"
                    raise LlmgwError(msg, f"kill -9 {pid} ends it; engines keep running")
                time.sleep(TICK_S)
        except ProcessLookupError:
            return
        except PermissionError as e:
            msg = f"the {part.name} (pid {pid}) of an earlier `llmgw up` is another user's"
            raise LlmgwError(msg, f"run this as that user, or have it ended: kill {pid}") from e

    def _on_end(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number

    def _on_reload(self, number: int, _frame: FrameType | None) -> None:
        for part in self._parts:
            if part.name == "control":
                part.send(number)

    def _tick(self, now: float) -> None:
        for part in self._parts:
            part.relay()
            if part.again_s is not None:
                if now >= part.again_s:
                    part.start(now)
            elif (code := part.ended()) is not None:
                self._died(part, code, now)
        if not self._ready and all(map(_answers, self._peers.values())):
            self._ready = True
            url = self._peers["gateway"].url
            say(f"ready: {url}/v1; try  curl {url}/v1/models  and  {self._status}")

    def _died(self, part: Part, code: int, now: float) -> None:
        """The first start must work, or there is nothing to keep up; later a part that dies comes back."""
        part.relay()
        if not self._ready:
            error, hint = part.last_words()
            msg = error or f"the {part.name} ended with {code} before it was ready"
            raise LlmgwError(msg, hint or part.where_it_spoke())
        if part.name == "control" and code == EXIT_OK:  # `llmgw down` asked it to
            self._down = True
            return
        if now - part.started_s > QUIET_S:
            part.pause_s = FIRST_PAUSE_S
        say(f"the {part.name} died ({_end_word(code)}); starting it again in {part.pause_s:.0f} s")
        part.again_s = now + part.pause_s
        part.pause_s = min(part.pause_s * 2, LAST_PAUSE_S)

    def _engines(self) -> list[str]:
        try:
            peer = self._peers["control"]._replace(token=self._token())
            found = ask.get(peer, "/api/v1/status", timeout_s=2.0)
        except LlmgwError:
            return []
        return [s["shard"] for r in found["replicas"] for s in r["shards"] if s.get("pid")]

    def _end(self) -> None:
        """An `up` that never was ready takes the gateway with it that it brought: nobody would look for that."""
        control = next((part.pid for part in self._parts if part.name == "control"), 0)
        if not self._ready:
            self._brought.look(control)
        for part in self._parts:
            part.send(signal.SIGTERM)
        give_up = time.monotonic() + END_S
        for part in self._parts:
            while part.process and part.ended() is None:
                if not self._ready:
                    self._brought.look(control)
                part.relay()
                if time.monotonic() > give_up:
                    say(f"the {part.name} (pid {part.pid}) does not end; killing it")
                    part.send(signal.SIGKILL)
                time.sleep(TICK_S)
            part.relay()
        if not self._ready and (became := self._brought.end()):
            say(became)

    def _farewell(self, running: Sequence[str]) -> None:
        if self._down:
            say("control and the gateway were ended by `llmgw down`; the agent has ended too")
            return
        engines = f"{len(running)} engine{'s' if len(running) != 1 else ''}"
        named = f" ({', '.join(running)})" if running else ""
        if not self._ready:
            say(f"control and agent have ended before all was ready; {engines}{named} keep running")
            return
        say(f"control and agent have ended; {engines}{named} and the gateway keep running")
        say(
            "`llmgw up` finds them again; `llmgw down` then ends the gateway, with --engines the engines too"
        )


def _answers(peer: ask.Peer) -> bool:
    try:
        ask.get(peer, "/healthz", timeout_s=1.0)
    except UnreachableError:
        return False
    except LlmgwError:
        pass
    return True


def _whose(agent: ask.Peer) -> str:
    """Who has the agent's place, and what ends it: that of an `up` would only be started again."""
    from llmgw.agent.ports import holder, pid_of

    port = int(agent.place.rpartition(":")[2])
    pid = str(pid_of(port))
    if pid == "0":
        return f"it is {holder(port)}: `kill` ends it"
    if "up" not in _words(_stat(pid)[1])[1:4]:
        return f"it is {holder(port)}: `kill {pid}` ends it"
    words = _words(pid)
    url = words[words.index("--control") + 1] if "--control" in words else CONTROL_URL
    down = "llmgw down" + (f" --control {url}" if url != CONTROL_URL else "")
    return f"it is pid {pid}, the agent of another `llmgw up`: `{down}` ends that `up`"


def _words(pid: str) -> list[str]:
    """The command line of a process; [] where there is none, or none to see."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _stat(pid: str) -> list[str]:
    """State, parent, group and session (proc(5)); empty words where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
    except OSError:
        return [""] * 4


def _end_word(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def say(text: str) -> None:
    print(f"llmgw: {text}", file=sys.stderr, flush=True)  # noqa: T201
