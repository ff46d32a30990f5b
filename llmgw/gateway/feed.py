"""The link to control: route tables in, demand out, and the last table on disk.

Answers for: serving on from the last table with control away, over a restart of this process too; demand to every
control each second, and at once on a change that matters. It may not decide what a table means, nor touch a client.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from llmgw import tls, wire
from llmgw.config import Trust, pinned
from llmgw.core.types.routes import GATEWAY_WORD_S, Heard, RouteTable
from llmgw.gateway.plane import Control
from llmgw.gateway.settings import GatewaySettings
from llmgw.gateway.state import Gateway
from llmgw.gateway.upstream import Dialer, Fetch

ROUTES = "routes.json"
DEMAND = "/gateway/v1/demand"
#: Control holds a poll for 25 s at most.
POLL_S, POST_S = 35.0, 5.0
DEMAND_S = 1.0
#: What rested while control was slow to answer is left alone again no sooner than after so many times as long.
SPARED = 10
#: A table is on the disk so long after it is used.
SAVE_S = 0.01
BACKOFF_S, BACKOFF_MAX_S = 0.2, 5.0
OK, NO_CONTENT, NOT_MODIFIED = 200, 204, 304


class Log(Protocol):
    def info(self, event: str, **facts: Any) -> Any: ...

    def warning(self, event: str, **facts: Any) -> Any: ...


class Feed:
    def __init__(
        self, gateway: Gateway, dialer: Dialer, settings: GatewaySettings, log: Log
    ) -> None:
        self._gateway = gateway
        self._dialer = dialer
        self._trust = settings.trust
        #: those we were started with
        self._named = dict(self._place(url) for url in settings.controls)
        self.controls = [Control(*place) for place in self._named.items()]
        token = settings.token
        self._authorization = f"authorization: Bearer {token}\r\n" if token else ""
        self._group: asyncio.TaskGroup | None = None
        self._path = settings.state_dir / ROUTES
        self._log = log
        self._from_disk = False
        self._saving: asyncio.TimerHandle | None = None
        self._ended = False
        self._unsure = False
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
            if self._saving is not None:
                self._saving.cancel()
                self._save()

    def _place(self, url: str) -> tuple[str, Trust]:
        plain, trust = pinned(url, self._trust)
        return plain.rstrip("/"), trust

    def _know(self, urls: tuple[str, ...]) -> None:
        """Controls that the leader tells of, besides those we were started with: the next leader is one of them.

        One that shows another certificate now is another control: by what was known of the old one it is refused.
        """
        if not urls:
            return  # an older one does not say
        wanted = dict(self._named)
        for url, trust in map(self._place, urls):
            wanted[url] = trusted(self._named.get(url), trust)
        known = {control.url: control for control in self.controls}
        order = [*(url for url in known if url in wanted), *sorted(wanted.keys() - known.keys())]
        self.controls = [
            known[url]
            if url in known and known[url].trust == wanted[url]
            else self._another(Control(url, wanted[url]))
            for url in order
        ]
        for control in known.values():
            if control not in self.controls:
                self._dismiss(control)

    def _another(self, control: Control) -> Control:
        self._log.info("another control", control=control.url)
        if self._group is not None:
            self._group.create_task(self._post(control))
        return control

    def _dismiss(self, control: Control) -> None:
        """Asked and told nothing more; what it holds of ours is given up."""
        self._gateway.meter.control_up.pop(control.url, None)
        control.away.set()
        control.changed.set()
        control.endpoint.gone = True
        while control.endpoint.idle:
            control.endpoint.idle.pop().close()

    # -- tables

    async def _poll(self) -> None:
        """Any control will do: a standby's table is warm too. On a failure the next one is asked."""
        failures = 0
        while True:
            for control in sorted(self.controls, key=lambda c: c.up is False):
                while control in self.controls and await self.poll(control):
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
        if self._saving is None:
            self._saving = asyncio.get_running_loop().call_later(SAVE_S, self._save)
        return True

    def _save(self) -> None:
        """The table in use, for a start without control. No fsync: after a power cut no engine of it runs anyway.

        A moment later: what the new table brings to clients, engines and control need not wait for the disk (P9).
        """
        self._saving = None
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
        while control in self.controls and not self._ended:
            control.changed.clear()
            posted = await self._post_once(control, POST_S)
            control.tried.set()
            self._word()
            if posted:
                failures = 0
                await _soon(control.changed.wait, DEMAND_S)
            else:
                failures += 1
                await asyncio.sleep(jitter(failures))

    def _word(self) -> None:
        """Said once: why engines that run are not asked."""
        fleet, now = self._gateway.fleet, self._gateway.clock()
        silent_s = fleet.word.silent_s(now)
        unsure = sorted(e.replica for t in fleet.targets.values() for e in t.unsure)
        if not fleet.word.lapsed and self._unsure:
            self._unsure = False
            self._log.info("control has given its word again: what it may put to sleep is asked")
        elif unsure and silent_s >= GATEWAY_WORD_S and not self._unsure:
            self._unsure = True
            why = f"no control that leads has answered for {silent_s:.0f} s, and may have put it to sleep"
            self._log.warning("what may sleep is asked nothing new", replicas=unsure, why=why)

    async def _post_once(self, control: Control, limit_s: float) -> bool:
        async with control.turn:
            if self._ended:
                return True  # the last words are said
            began = self._gateway.clock()
            unserved = self._gateway.fleet.unserved()
            demand, rest = self._gateway.told(control, unserved)
            answer = await self._call(control, "POST", DEMAND, wire.encode(demand), limit_s)
            if rest is not None:
                now = self._gateway.clock()
                control.spared_until = now + (now - began) * SPARED
            control.still = False
            if answer is None:
                if all(c.none for c in self.controls):
                    self._gateway.alone(began)
                return False
            try:
                said = wire.decode(answer[1], Heard)
            except wire.WireError as e:
                self._down(control, f"its answer to POST {DEMAND} cannot be read: {e}")
                return False
            control.still = not said.acting
            control.heard, control.knows = said.at, unserved
            if control.owes(said.acting and said.version > self._version(), self._gateway.clock()):
                control.away.set()
            if rest is not None:
                self._gateway.answered(rest, said.version)
            # One that is cut off from the lease store speaks for itself alone: another may lead, unknown to it.
            if said.acting or all(c.still or c.none for c in self.controls):
                self._gateway.heard(began, said)
            return True

    async def last_words(self) -> None:
        """Tells every control that this process serves nobody any more, instead of leaving it to guess for a minute."""
        self._ended = True
        await asyncio.gather(*map(self._last, self.controls))

    async def _last(self, control: Control) -> None:
        """Behind what it was told before, or it would count this process on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * DEMAND_S), control.turn:
                body = wire.encode(replace(self._gateway.demand(), ended=True))
                await self._call(control, "POST", DEMAND, body, DEMAND_S)

    # -- calls

    async def _call(
        self, control: Control, method: str, path: str, body: bytes, limit_s: float
    ) -> tuple[int, bytes] | None:
        """Status and body, None where control did not answer as it should.

        In clear the token is shown to who has answered without it: a port of TLS has not, and others may read along.
        """
        shy = self._authorization and control.in_clear and not control.up
        if shy and await self._asked(control, "GET /healthz", "", b"", limit_s) is None:
            return None
        found = await self._asked(control, f"{method} {path}", self._authorization, body, limit_s)
        if found is None:
            return None
        status, answer = found
        if status not in (OK, NO_CONTENT, NOT_MODIFIED):
            said = answer[:200].decode(errors="replace")
            self._down(control, f"{method} {path} answered {status}: {said}")
            return None
        if not control.up:
            self._log.info("control answers", control=control.url)
        self._seen(control, up=True)
        return status, answer

    async def _asked(
        self, control: Control, what: str, authorization: str, body: bytes, limit_s: float
    ) -> tuple[int, bytes] | None:
        endpoint = control.endpoint
        head = (
            f"{what} HTTP/1.1\r\nhost: {endpoint.authority.decode()}\r\n"
            f"{authorization}content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        fetch = Fetch(self._dialer, endpoint, head.encode(), body)
        control.none = False
        try:
            async with asyncio.timeout(limit_s):
                return await fetch.result()
        except TimeoutError:
            self._down(control, f"no answer to {what} within {limit_s:.0f} s")
        except OSError as e:
            control.none = isinstance(e, ConnectionRefusedError)
            why = f"it {e}"
            if control.in_clear and await asyncio.to_thread(
                tls.speaks, endpoint.host, endpoint.port
            ):
                why = f"it speaks TLS: use https://{endpoint.authority.decode()}, as `llmgw token` prints it"
            self._down(control, why)
        return None

    def _down(self, control: Control, why: str) -> None:
        """Said once, not at each try."""
        if control.up is not False:
            self._log.warning("control is away", control=control.url, why=why)
        self._seen(control, up=False)
        control.away.set()

    def _seen(self, control: Control, *, up: bool) -> None:
        control.up = up
        if control in self.controls:
            self._gateway.meter.control_up[control.url] = up


def trusted(given: Trust | None, told: Trust) -> Trust:
    """What an operator gave holds on; a leader may add the hash of another certificate to theirs, and nothing else."""
    if given is None:
        return told
    return (
        given._replace(pins=tuple(dict.fromkeys((*given.pins, *told.pins))))
        if given.pins
        else given
    )


def jitter(failures: int) -> float:
    """Full jitter, so that many gateways do not come back in step."""
    return random.uniform(0, min(BACKOFF_S * 2 ** min(failures, 10), BACKOFF_MAX_S))  # noqa: S311 - no secret


async def _soon(wait: Callable[[], Awaitable[object]], limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await wait()
    except TimeoutError:
        pass
