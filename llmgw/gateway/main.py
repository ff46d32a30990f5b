"""One gateway process, put together: the listener, the state dir, the link to control, the sweeper, and a gentle end.

Answers for: starting only what can serve, and ending without cutting a stream. It reads the clocks; it may not decide
anything about a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn

import structlog

from llmgw import __version__, errors
from llmgw.errors import LlmgwError, UsageError
from llmgw.gateway.door import Door, StateDir
from llmgw.gateway.feed import Feed
from llmgw.gateway.meter import Access
from llmgw.gateway.proxy import serve_on
from llmgw.gateway.settings import GatewaySettings, address, is_loopback
from llmgw.gateway.state import Gateway
from llmgw.gateway.upstream import Dialer
from llmgw.handover import Hello

try:
    from uvloop import new_event_loop
except ImportError:  # the stock loop is a sound fall-back, at a fraction of the speed
    from asyncio import new_event_loop  # type: ignore[assignment]

SWEEP_S = 1.0
BACKLOG = 4096
FIRST_TABLE_S = 5.0
FIRST_WAIT_S = 2.0


def run(settings: GatewaySettings) -> int:
    """Serves until it is stopped; gives the exit code. `LlmgwError` where it cannot start."""
    settings.check()
    _raise_file_limit()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(settings))


async def _run(settings: GatewaySettings) -> int:
    return await Process(settings).run()


class Stop:
    """TERM, Ctrl-C or `handover.stop`: no new clients, an end when nothing is in flight. Asked again: at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.again = asyncio.Event()
        self.exit_code = errors.EXIT_OK

    def ask(self, exit_code: int = errors.EXIT_OK) -> None:
        if self.asked.is_set():
            self.again.set()
        self.exit_code = exit_code
        self.asked.set()


class _Ended(Exception):  # noqa: N818 - no error: it ends the task group
    pass


class Process:
    """What `run` starts and ends, inside a running loop."""

    def __init__(self, settings: GatewaySettings) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._log: Any = structlog.get_logger()
        self._stop = Stop()
        self._state_dir = StateDir(settings.state_dir)
        self._listener = _listener(settings)
        self._where = _spelled(self._listener)
        loopback = is_loopback(self._listener.getsockname()[0])
        self._gateway = Gateway(
            clock=time.monotonic,
            access=Access(_write, time.time) if settings.access_log else None,  # noqa: TID251 - for people
            open_without_keys=loopback or settings.insecure,
            body_limit=settings.body_bytes,
        )
        loop.set_exception_handler(partial(_log_bug, self._log))
        loop.add_signal_handler(signal.SIGTERM, self._stop.ask)
        loop.add_signal_handler(signal.SIGINT, self._stop.ask, errors.EXIT_INTERRUPTED)
        # Unheard it would end the gateway, with every stream.
        loop.add_signal_handler(signal.SIGHUP, self._log.info, "nothing to reload here")

    async def run(self) -> int:
        refused: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                await self._serve(group)
                _end()
        except* _Ended:
            pass
        except* LlmgwError as e:
            refused = e.exceptions[0]
        if refused is not None:
            raise refused
        return self._stop.exit_code

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        gateway, log = self._gateway, self._log
        dialer = Dialer(
            lambda coroutine: group.create_task(_guarded(coroutine, log)), gateway.clock
        )
        gateway.connect = dialer.connect
        feed = Feed(gateway, dialer, self._settings, log)
        feed.restore()
        if not gateway.open_without_keys:
            await _need_keys(gateway, feed, self._where)
        group.create_task(_kept(feed.run, log))
        group.create_task(_kept(partial(_sweep, gateway), log))
        # First the door: a control that was killed since it spawned us asks there for the listener.
        token, path = self._settings.token, self._state_dir.path
        door = Door(path, self._listener, self._hello, token, self._stop.ask)
        await _first_table(gateway, feed)
        server = await serve_on(gateway, self._listener.dup())
        log.info("serving", listen=self._where, gateway=gateway.id, pid=os.getpid())
        await self._stop.asked.wait()
        gateway.stopping = True
        server.close()
        door.close()
        self._listener.close()
        self._state_dir.release()
        await _finish(gateway, self._stop, self._settings.drain_timeout_s, log)
        if gateway.access is not None:
            gateway.access.flush()
        await feed.last_words()

    def _hello(self) -> Hello:
        table = self._gateway.fleet.table
        return Hello(
            pid=os.getpid(),
            gateway=self._gateway.id,
            version=__version__,
            table=table.version if table is not None else 0,
            listen=self._where,
        )


def _end() -> NoReturn:
    raise _Ended


def _spelled(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _need_keys(gateway: Gateway, feed: Feed, where: str) -> None:
    """Beyond loopback nobody is served without a key: the table must hold one before the first client comes."""
    table = gateway.fleet.table
    if table is None or not table.keys:
        for control in feed.controls:
            await feed.poll(control, FIRST_TABLE_S)
        table = gateway.fleet.table
    if table is None or not table.keys:
        known = "no control answered with a table" if table is None else "no API key exists"
        message = f"listening on {where} refused: that is beyond loopback, and {known}"
        raise UsageError(
            message, "--insecure serves everybody on that network; else listen on 127.0.0.1"
        )


async def _first_table(gateway: Gateway, feed: Feed) -> None:
    """A moment for a control that is there to say what runs; clients wait in the listener's queue, refused by nobody.

    Without it the first requests after a first start got 503 although their model was ready.
    """
    if gateway.fleet.table is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WAIT_S):
                await feed.told.wait()


async def _finish(gateway: Gateway, stop: Stop, limit_s: float, log: Any) -> None:
    """Until nothing is in flight, `limit_s` is over, or somebody asks again."""
    deadline = gateway.clock() + limit_s
    log.info("stopping", in_flight=gateway.in_flight(), limit_s=limit_s)
    while gateway.in_flight() and gateway.clock() < deadline and not stop.again.is_set():
        try:
            async with asyncio.timeout(SWEEP_S / 10):
                await stop.again.wait()
        except TimeoutError:
            continue
    log.info("stopped", cut=gateway.in_flight())


async def _sweep(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        gateway.tick()


async def _kept(work: Callable[[], Coroutine[Any, Any, None]], log: Any) -> None:
    """Work without an end. A bug in it must not end the streams: it is logged whole, and the work begins anew."""
    while True:
        await _guarded(work(), log)
        await asyncio.sleep(SWEEP_S)


async def _guarded(coroutine: Coroutine[Any, Any, None], log: Any) -> None:
    try:
        await coroutine
    except Exception:
        log.exception("a bug")


def _log_bug(log: Any, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    log.error("a bug", why=context.get("message"), exc_info=context.get("exception"))


def _listener(settings: GatewaySettings) -> socket.socket:
    if settings.listen_fd is not None:
        return _inherited(settings.listen_fd)
    assert settings.listen is not None
    host, port = address(settings.listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        message = f"cannot listen on {settings.listen}: {os.strerror(e.errno or 0).lower()}"
        in_use = e.errno == errno.EADDRINUSE
        hint = "another gateway or program has it" if in_use else "give an address of this machine"
        raise LlmgwError(message, hint) from e
    return listener


def _inherited(fd: int) -> socket.socket:
    try:
        listener = socket.socket(fileno=fd)
        listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as e:
        message = f"--listen-fd {fd} is no socket: {os.strerror(e.errno or 0).lower()}"
        raise UsageError(message, "whoever starts the gateway passes a listening socket on") from e
    if not listening:
        listener.detach()
        message = f"--listen-fd {fd} does not listen"
        raise UsageError(message, "whoever starts the gateway passes a listening socket on")
    listener.set_inheritable(False)
    return listener


def _raise_file_limit() -> None:
    """A connection is a descriptor, and most systems start programs with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _write(line: bytes) -> None:
    try:  # noqa: SIM105 - once a request: `suppress` costs more than the rest of it
        os.write(2, line)
    except OSError:
        pass  # whoever read the log is gone; the clients are not
