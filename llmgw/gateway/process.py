"""One process that serves, put together: the listener, the link to control, the sweeper, and a gentle end.

Answers for: starting only what can serve, and ending without cutting a stream. It reads the clocks; it may not decide
anything about a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from math import inf
from typing import Any, NoReturn

import structlog

from llmgw import __version__, errors
from llmgw.clock import awake_s
from llmgw.errors import LlmgwError, UsageError
from llmgw.gateway.books import Access
from llmgw.gateway.door import Door
from llmgw.gateway.feed import Feed
from llmgw.gateway.memory import settle
from llmgw.gateway.place import Place, occupied, spelled
from llmgw.gateway.proxy import serve_on
from llmgw.gateway.settings import GatewaySettings
from llmgw.gateway.state import Gateway
from llmgw.gateway.upstream import Dialer
from llmgw.handover import Hello
from llmgw.loopback import here, is_loopback
from llmgw.systemd import Service

SWEEP_S = 1.0
FIRST_TABLE_S = 5.0
FIRST_WAIT_S = 2.0


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

    def hear(self, log: Any) -> None:
        """The signals. HUP unheard would end the gateway, with every stream."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.ask)
        loop.add_signal_handler(signal.SIGINT, self.ask, errors.EXIT_INTERRUPTED)
        loop.add_signal_handler(signal.SIGHUP, log.info, "nothing to reload here")


class _Ended(Exception):  # noqa: N818 - no error: it ends the task group
    pass


async def ended(work: Callable[[asyncio.TaskGroup], Awaitable[None]]) -> None:
    """Until `work` is done; what it set going in its group ends with it."""
    refused: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            await work(group)
            _end()
    except* _Ended:
        pass
    except* LlmgwError as e:
        refused = e.exceptions[0]
    if refused is not None:
        raise refused


class Process:
    """`place` None: somebody else holds it (`workers`), and this one only serves."""

    def __init__(
        self,
        settings: GatewaySettings,
        listener: socket.socket,
        service: Service,
        place: Place | None = None,
    ) -> None:
        self._log: Any = structlog.get_logger()
        self._stop = Stop()
        self._service = service
        self._place = place
        self._door: Door | None = None
        self._settings = settings
        self._listener = listener
        self._where = spelled(listener)
        loopback = is_loopback(self._listener.getsockname()[0])
        self._gateway = Gateway(
            clock=awake_s,
            access=Access(_write, time.time) if settings.access_log else None,  # noqa: TID251 - for people
            open_without_keys=loopback or settings.insecure,
            body_limit=settings.body_bytes,
            here=here(),
        )
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(partial(_log_bug, self._log))
        self._stop.hear(self._log)

    async def run(self) -> int:
        await ended(self._serve)
        return self._stop.exit_code

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        gateway, log = self._gateway, self._log
        dialer = Dialer(
            lambda coroutine: group.create_task(_guarded(coroutine, log)), gateway.clock
        )
        gateway.connect = dialer.connect
        gateway.soon = asyncio.get_running_loop().call_soon
        feed = Feed(gateway, dialer, self._settings, log)
        feed.restore()
        if not gateway.open_without_keys:
            await _need_keys(gateway, feed, self._where)
        group.create_task(kept(feed.run, log))
        group.create_task(kept(self._sweep, log))
        server = await self._opened(group, feed)
        settle()
        log.info("serving", listen=self._where, gateway=gateway.id, pid=os.getpid())
        self._service.ready(f"serving {self._where}")
        await self._stop.asked.wait()
        self._service.stopping(f"ends after {gateway.in_flight()} requests in flight")
        gateway.stopping = True
        server.close()
        self._leave()
        await _finish(gateway, self._stop, self._settings.drain_timeout_s, log)
        gateway.write_down()
        if gateway.access is not None:
            gateway.access.flush()
        await feed.last_words()

    async def _opened(self, group: asyncio.TaskGroup, feed: Feed) -> asyncio.Server:  # noqa: ARG002 - a worker's needs it
        async def serving() -> asyncio.Server:
            assert place is not None
            if place.old is not None:
                await known(feed)
            return await self._accepting(feed)

        place = self._place
        assert place is not None
        server, self._door = await occupied(place, self, serving, self._log)
        return server

    async def _accepting(self, feed: Feed) -> asyncio.Server:
        await _first_table(self._gateway, feed)
        return await serve_on(self._gateway, self._listener.dup())

    def _leave(self) -> None:
        if self._door is not None:
            self._door.close()
        self._listener.close()
        if self._place is not None:
            self._place.state_dir.release()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._gateway.tick()
            self._service.alive()
            self._swept()

    def _swept(self) -> None:
        """Once a second; a worker has more to do then."""

    # -- for the door

    def stop(self) -> None:
        self._stop.ask()

    def give_way(self) -> None:
        """As TERM, but somebody else accepts now: idle clients are told with their next answer, not cut off."""
        if not self._stop.asked.is_set():
            self._gateway.handed_over = True
            self._stop.ask()

    def hello(self) -> Hello:
        table = self._gateway.fleet.table
        return Hello(
            pid=os.getpid(),
            gateway=self._gateway.id,
            version=__version__,
            table=table.version if table is not None else 0,
            listen=self._where,
            controls=self._settings.controls,
        )


def _end() -> NoReturn:
    raise _Ended


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
            message,
            "`llmgw key add NAME` makes one, with --inventory FILE while no control runs; "
            "else listen on 127.0.0.1, or serve everybody on that network: --insecure",
        )


async def _first_table(gateway: Gateway, feed: Feed) -> None:
    """A moment for a control that is there to say what runs; clients wait in the listener's queue, refused by nobody.

    Without it the first requests after a first start got 503 although their model was ready; those after another one
    would be too many to wait, where it may have been put to sleep.
    """
    if gateway.word_due:
        await known(feed)
    if gateway.fleet.table is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WAIT_S):
                await feed.told.wait()


async def known(feed: Feed) -> None:
    """A moment for control to hear of us, and us of its table: then it drains no replica behind our back."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_WAIT_S):
            await asyncio.gather(*(control.tried.wait() for control in feed.controls))


async def _finish(gateway: Gateway, stop: Stop, limit_s: float, log: Any) -> None:
    """Until nothing is in flight, `limit_s` is over, or somebody asks again.

    In whose place another one serves has all the time that its clients take: a WebSocket may last for hours.
    """
    deadline = inf if gateway.handed_over else gateway.clock() + limit_s
    limit = None if gateway.handed_over else limit_s
    log.info("stopping", in_flight=gateway.in_flight(), limit_s=limit)
    while _left(gateway) and gateway.clock() < deadline and not stop.again.is_set():
        try:
            async with asyncio.timeout(SWEEP_S / 10):
                await stop.again.wait()
        except TimeoutError:
            continue
    log.info("stopped", cut=gateway.in_flight())


def _left(gateway: Gateway) -> int:
    """What an end waits for; after a handover also clients that may be about to ask."""
    return len(gateway.connections) if gateway.handed_over else gateway.in_flight()


async def kept(work: Callable[[], Coroutine[Any, Any, None]], log: Any) -> None:
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


def _write(line: bytes) -> None:
    try:  # noqa: SIM105 - once a request: `suppress` costs more than the rest of it
        os.write(2, line)
    except OSError:
        pass  # whoever read the log is gone; the clients are not
