"""A gateway as it is started: its place, and one process that serves there, or one that keeps several which do.

Answers for: which of the two. It may not decide anything else.
"""

from __future__ import annotations

import asyncio
import resource

import msgspec

from llmgw.gateway.place import place
from llmgw.gateway.process import Process
from llmgw.gateway.settings import GatewaySettings
from llmgw.gateway.worker import Worker, started
from llmgw.gateway.workers import Parent
from llmgw.systemd import Service

try:
    from uvloop import new_event_loop
except ImportError:  # the stock loop is a sound fall-back, at a fraction of the speed
    from asyncio import new_event_loop  # type: ignore[assignment]


def run(settings: GatewaySettings) -> int:
    """Serves until it is stopped; gives the exit code. `LlmgwError` where it cannot start."""
    settings.check()
    _raise_file_limit()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(settings))


async def _run(settings: GatewaySettings) -> int:
    service = Service()
    here = place(settings, service)
    settings = msgspec.structs.replace(settings, token=here.token)
    if settings.workers > 1:
        return await Parent(settings, here, service).run()
    return await Process(settings, here.listener, service, here).run()


def run_worker(line: int) -> int:
    """One of several, started by their parent, which is at the other end of `line`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run_worker(line))


async def _run_worker(line: int) -> int:
    return await Worker(*started(line)).run()


def _raise_file_limit() -> None:
    """A connection is a descriptor, and most systems start programs with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
