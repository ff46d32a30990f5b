"""A program: starts something that forks at once, and gives it a scope of its own.

Prints where it is then, how many processes are there with it, and why if it is not in a scope.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from llmgw.agent import process, scopes


def main() -> None:
    unit = scopes.unit_name("alpha-1/0", "inc-1", 1)
    command = ["sh", "-c", "sleep 60 & sleep 60 & wait"]
    with subprocess.Popen(command, start_new_session=True) as engine:
        try:
            why = asyncio.run(scopes.enclose(engine.pid, unit, "a test"))
            where = scopes.cgroup(engine.pid)
            session = [s.pid for s in process.all_stats().values() if s.sid == engine.pid]
            count = sum(scopes.cgroup(pid) == where for pid in session)
            sys.stdout.write(f"{where}\n{count}\n{why}\n")
        finally:
            os.killpg(engine.pid, signal.SIGKILL)


main()
