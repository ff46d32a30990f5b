"""A person's shell in which engines are started by hand: they share its session, and must not take it with them.

Answers for: one line typed and one answered, and nothing of it left behind. It may not know what is tested.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from llmgw.agent import process
from scripts.ports import free_port
from tests.engines.running import FAKE


class Shell:
    """A person's shell: what is started in it shares its session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            text=True,
        )
        self.engines: dict[int, int] = {}

    def says(self, line: str) -> str:
        """One line typed, one line answered."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def engine(self, *flags: str, port: int = 0, env: str = "") -> tuple[int, int]:
        """Pid and port of an engine in the background of the shell."""
        port = port or free_port()
        return self.runs([*FAKE, "--port", str(port), *flags], env), port

    def runs(self, argv: list[str], env: str = "") -> int:
        """Pid of a program in the background of the shell."""
        words = shlex.join(argv)
        pid = int(self.says(f"{env} {words} >engine.log 2>&1 & echo $!"))
        stat = process.read_stat(pid)
        assert stat is not None
        self.engines[pid] = stat.ticks
        return pid

    def close(self) -> None:
        workers = [s for s in process.all_stats().values() if s.ppid in self.engines]
        for pid, ticks in (*self.engines.items(), *((s.pid, s.ticks) for s in workers)):
            process.send(pid, ticks, signal.SIGKILL)  # a number may be another's by now
        self.process.kill()
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextlib.contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    person = Shell(folder)
    try:
        yield person
    finally:
        person.close()
