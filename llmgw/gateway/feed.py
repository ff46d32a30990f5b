"""The link to control: route tables in, demand out, and the last table on disk.

Answers for: serving on from the last table with control away, over a restart of this process too; demand to every
control each second, and at once on a change that matters. It may not decide what a table means, nor touch a client.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from llmgw import tls, wire
from llmgw.config import Trust, pinned
from llmgw.core.types.routes import RouteReplica, RouteTable
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.settings import GatewaySettings
from llmgw.gateway.state import Gateway
from llmgw.gateway.upstream import Dialer, Fetch

ROUTES = "routes.json"
#: Control holds a poll for 25 s at most.
POLL_S, POST_S = 35.0, 5.0
DEMAND_S = 1.0
BACKOFF_S, BACKOFF_MAX_S = 0.2, 5.0
OK, NO_CONTENT, NOT_MODIFIED = 200, 204, 304


class Log(Protocol):
    def info(self, event: str, **facts: Any) -> Any: ...

    def warning(self, event: str, **facts: Any) -> Any: ...


class Control:
    """One control plane: its URL, and whether it answered last."""

    def __init__(self, url: str, trust: Trust) -> None:
        plain, trust = pinned(url, trust)
        self.url = plain.rstrip("/")
        self.endpoint = Endpoint(RouteReplica(replica=self.url, endpoint=self.url))
        if self.url.startswith("https:"):
            self.endpoint.tls = tls.client(trust)
        self.changed = asyncio.Event()
        #: it was told of this process, or does not answer
        self.tried = asyncio.Event()
        self.up: bool | None = None
        self.away = asyncio.Event()


class Feed:
    def __init__(
        self, gateway: Gateway, dialer: Dialer, settings: GatewaySettings, log: Log
    ) -> None:
        self._gateway = gateway
        self._dialer = dialer
        self._trust = settings.trust
        self.controls = [Control(url, self._trust) for url in settings.controls]
        token = settings.token
        self._authorization = f"authorization: Bearer {token}\r\n" if token else ""
        self._named = frozenset(control.url for control in self.controls)
        self._group: asyncio.TaskGroup | None = None
        self._path = settings.state_dir / ROUTES
        self._log = log
        self._from_disk = False
        #: a control has given us a table since this process began
        self.told = asyncio.Event()
        gateway.on_change.append(self._changed)

    def restore(self) -> None:
        """Starts from the last table, where there is one: control may be away."""
        try:
            table = wire.decode(self._path.read_bytes(), RouteTable)
        except FileNotFoundError:
            return
        except (OSError, wire.WireError) as e:
            self._log.warning(
                "last route table is unreadable, going on without", path=str(self._path), why=str(e)
            )
            return
        self._from_disk = True
        self._gateway.apply(table)
        self._know(table.controls)
        self._log.info("route table from disk", version=table.version, models=len(table.models))

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._poll())
                for control in self.controls:
                    group.create_task(self._post(control))
        finally:
            self._group = None

    def _know(self, urls: tuple[str, ...]) -> None:
        """Controls that the leader tells of, besides those we were started with: the next leader is one of them."""
        if not urls:
            return  # an older one does not say
        told = {pinned(url)[0].rstrip("/"): url for url in urls}
        wanted = self._named | told.keys()
        self.controls = [control for control in self.controls if control.url in wanted]
        for url in sorted(wanted - {control.url for control in self.controls}):
            self.controls.append(Control(told[url], self._trust))
            self._log.info("another control", control=url)
            if self._group is not None:
                self._group.create_task(self._post(self.controls[-1]))

    # -- tables

    async def _poll(self) -> None:
        """Any control will do: a standby's table is warm too. On a failure the next one is asked."""
        failures = 0
        while True:
            for control in sorted(self.controls, key=lambda c: c.up is False):
                while await self.poll(control):
                    failures = 0
            failures += 1
            await asyncio.sleep(jitter(failures))

    async def poll(self, control: Control, limit_s: float = POLL_S) -> bool:
        """Asks once for a newer table; whether this control is worth asking again at once."""
        began = self._gateway.clock()
        path = f"/gateway/v1/routes?version={self._version()}"
        answer = await self._held(control, path, limit_s)
        if answer is None:
            return False
        status, body = answer
        if status == NO_CONTENT:
            return False  # a standby that has nothing newer: the leader is another
        taken = None
        if status == OK:
            try:
                taken = self._take(wire.decode(body, RouteTable))
            except wire.WireError as e:
                self._down(control, str(e))
                return False
        if not taken and self._gateway.clock() - began < DEMAND_S:
            await asyncio.sleep(DEMAND_S)  # it did not hold the poll
        return taken is not False

    async def _held(self, control: Control, path: str, limit_s: float) -> tuple[int, bytes] | None:
        """Given up when this control stops answering meanwhile: a host without power breaks no connection (F63)."""
        control.away.clear()
        call = asyncio.ensure_future(self._call(control, "GET", path, b"", limit_s))
        away = asyncio.ensure_future(control.away.wait())
        try:
            await asyncio.wait((call, away), return_when=asyncio.FIRST_COMPLETED)
            return call.result() if call.done() else None
        finally:
            call.cancel()
            away.cancel()

    def _version(self) -> int:
        table = self._gateway.fleet.table
        return table.version if table is not None else 0

    def _take(self, table: RouteTable) -> bool | None:
        """Uses another table: True. None where it is the one in use, False where it is not wanted.

        An older one is taken only where nobody else can be right: from the one control there is (it lost its state), or
        over a table that is only remembered. A standby that lags must not take a newer one back.
        """
        known = self._gateway.fleet.table
        if known is not None and table.version == known.version and not self._from_disk:
            return None
        newer = known is None or table.version > known.version
        if not newer and len(self.controls) > 1 and not self._from_disk:
            return False
        self._from_disk = False
        self._gateway.apply(table)
        self._know(table.controls)
        self.told.set()
        self._log.info(
            "route table", version=table.version, models=len(table.models), partial=table.partial
        )
        self._save()
        return True

    def _save(self) -> None:
        """The table in use, for a start without control. No fsync: after a power cut no engine of it runs anyway."""
        if self._gateway.stopping:
            return  # the file is the next gateway's
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.unlink(missing_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(wire.encode(self._gateway.fleet.table))
            temporary.replace(self._path)
        except OSError as e:
            self._log.warning("route table is not kept on disk", path=str(self._path), why=str(e))

    # -- demand

    def _changed(self) -> None:
        for control in self.controls:
            control.changed.set()

    async def _post(self, control: Control) -> None:
        failures = 0
        while control in self.controls:
            control.changed.clear()
            posted = await self._post_once(control, POST_S)
            control.tried.set()
            if posted:
                failures = 0
                await _soon(control.changed.wait, DEMAND_S)
            else:
                failures += 1
                await asyncio.sleep(jitter(failures))

    async def _post_once(self, control: Control, limit_s: float) -> bool:
        body = wire.encode(self._gateway.demand())
        return await self._call(control, "POST", "/gateway/v1/demand", body, limit_s) is not None

    async def last_words(self) -> None:
        """Tells every control that nothing is in flight any more, instead of leaving it to guess for a minute."""
        await asyncio.gather(*(self._post_once(control, DEMAND_S) for control in self.controls))

    # -- calls

    async def _call(
        self, control: Control, method: str, path: str, body: bytes, limit_s: float
    ) -> tuple[int, bytes] | None:
        """Status and body, None where control did not answer as it should."""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {control.endpoint.authority.decode()}\r\n"
            f"{self._authorization}content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        fetch = Fetch(self._dialer, control.endpoint, head.encode(), body)
        try:
            async with asyncio.timeout(limit_s):
                status, answer = await fetch.result()
        except TimeoutError:
            self._down(control, f"no answer to {method} {path} within {limit_s:.0f} s")
            return None
        except OSError as e:
            self._down(control, f"it {e}")
            return None
        if status not in (OK, NO_CONTENT, NOT_MODIFIED):
            said = answer[:200].decode(errors="replace")
            self._down(control, f"{method} {path} answered {status}: {said}")
            return None
        if not control.up:
            self._log.info("control answers", control=control.url)
        control.up = self._gateway.meter.control_up[control.url] = True
        return status, answer

    def _down(self, control: Control, why: str) -> None:
        """Said once, not at each try."""
        if control.up is not False:
            self._log.warning("control is away", control=control.url, why=why)
        control.up = self._gateway.meter.control_up[control.url] = False
        control.away.set()


def jitter(failures: int) -> float:
    """Full jitter, so that many gateways do not come back in step."""
    return random.uniform(0, min(BACKOFF_S * 2 ** min(failures, 10), BACKOFF_MAX_S))  # noqa: S311 - no secret


async def _soon(wait: Callable[[], Awaitable[object]], limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await wait()
    except TimeoutError:
        pass
