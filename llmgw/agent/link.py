"""The talk with one control: register, long-poll its commands, tell it what changed (contract/http.md "Agents").

A failure of any kind ends the session and begins with a full register again, after a back-off with full jitter. May not
decide: commands go to the loop, what is told comes from its state.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from contextlib import closing, suppress
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import msgspec
import structlog
from msgspec.structs import replace

from llmgw import config, wire
from llmgw.agent import crash
from llmgw.agent.calls import Caller, Calls, error_of
from llmgw.agent.knock import knock, trouble
from llmgw.clock import Stamps
from llmgw.config import Trust
from llmgw.core.supervise.report import node_report, shard_report
from llmgw.core.types.messages import (
    Command,
    Events,
    EventsReply,
    NodeReport,
    Refusal,
    Registered,
)
from llmgw.core.types.node import AgentState, Event, Session, SessionOpened
from llmgw.core.types.record import Key
from llmgw.errors import LlmgwError, system_said
from llmgw.wire.unknown import unknown

log = structlog.get_logger()
BACKOFF_S, BACKOFF_CAP_S = 0.25, 5.0
#: Control and agent start at one time, at a boot and under `llmgw up`: until then nobody listening is no outage.
COMING_UP_S = 10.0
CALL_S, POLL_S = 10.0, 40.0
#: While control's picture stays another whatever is reported, a complete report is sent ever more rarely.
DISPUTE_S, DISPUTE_CAP_S = 5.0, 600.0
#: After a poll that control answered at once with nothing (it is on its way out): not again and again in between.
UNHELD_S = 1.0
_jitter = secrets.SystemRandom()


class Owner(Protocol):
    """The loop, as far as a link needs it."""

    @property
    def state(self) -> AgentState: ...
    def post(self, event: Event) -> None: ...
    async def snapshot(self, control: str) -> NodeReport: ...
    async def obey(self, control: str, command: Command, extra: dict[str, Any]) -> None: ...


class TalkError(LlmgwError):
    """Control said no; `hint` says what to do."""

    code = "control"


class OverError(Exception):
    """The session is over: register again."""


class Outbox:
    """What this control has not been told yet. Nothing is lost by a failed call: it goes back in."""

    def __init__(self) -> None:
        self.changed: set[Key] = set()
        self.gone: set[Key] = set()
        self.refused: list[Refusal] = []
        self.ready = asyncio.Event()

    def told_all(self) -> None:
        """A complete inventory was taken: it holds all of this but the refusals."""
        self.changed.clear()
        self.gone.clear()


class Polled(msgspec.Struct):
    """`Commands` with each command undecoded: a newer control may send one that this agent does not know."""

    commands: tuple[dict[str, Any], ...] = ()
    leader: bool = True
    epoch: int = 0


class Link:
    def __init__(
        self,
        owner: Owner,
        url: str,
        token: str,
        trust: Trust = Trust(),  # noqa: B008 - immutable
        *,
        node: str = "",
        token_now: Callable[[], str] = str,
        calls: Caller | None = None,
    ) -> None:
        self.owner = owner
        self._token_now = token_now  # where this one is refused: its file may be another by now
        plain, self.trust = config.pinned(url, trust)
        self.url = plain.rstrip("/")
        self.on_joined: Callable[[], None] = lambda: None
        self.outbox = Outbox()
        self.stamps = Stamps()
        self.session: Session | None = None
        self.state = "connecting"
        #: it has registered, or failed to, once
        self.tried = asyncio.Event()
        self.said = self.again = ""
        self.failures = self.disputes = 0
        self.young_until_s = time.monotonic() + COMING_UP_S
        self.disputed_until_s = 0.0
        self.dispute_said = False
        self.pause_s: Callable[[int], float] = back_off_s
        self.seq = 0
        self.count = 0
        #: what its catalog starts
        self.programs: tuple[str, ...] = ()
        # By its node's name control can say whom it refuses.
        self.calls = calls or Calls(self.url, self.trust, token=token, node=node)

    def offer(self) -> None:
        """There is something to tell, if only that we live. Called by the loop alone (F60)."""
        self.outbox.ready.set()

    def register_again(self, why: str) -> None:
        self.again = why
        self.outbox.ready.set()

    # ------------------------------------------------ the task

    async def run(self) -> None:
        with closing(self.calls):
            while True:
                try:
                    await self._register()
                    await self._talk()
                except OverError as e:
                    log.info("registering again", control=self.url, why=str(e))
                except (LlmgwError, OSError) as e:
                    self._down(e, await trouble(self.url, e))
                if not self.again:
                    await asyncio.sleep(self.pause_s(self.failures))
                    self.failures += 1

    def _down(self, error: Exception, found: tuple[str, str]) -> None:
        """One line an outage, not one a try."""
        self.session = None
        if isinstance(error, LlmgwError):
            words = f"{error.message} - {error.hint}" if error.hint else error.message
            kind = re.sub(r"\d+", "#", words)  # "heard 3 s ago" is no news after "heard 2 s ago"
        else:
            why, hint = found
            kind = why or "unreachable"
            why = why or system_said(error) or str(error) or type(error).__name__
            words = f"control {self.url} cannot be reached: {why}"
            words += f" - {hint}" if hint else ""
        self.state = words
        self.tried.set()
        tell = log.warning
        if isinstance(error, ConnectionRefusedError) and time.monotonic() < self.young_until_s:
            tell, kind, words = log.info, "young", f"control {self.url} is not up yet"
        if kind != self.said:
            running = sum(not r.ended for r in self.owner.state.records.values())
            tell(words, engines_kept=running, retrying=True)
        self.said = kind

    async def _register(self) -> None:
        self.session, self.again = None, ""
        await knock(self.calls, CALL_S)
        report = await self.owner.snapshot(self.url)
        # The boot's own clock, not a counter of ours: it rises over restarts of this agent too.
        report = replace(report, registration=time.monotonic_ns())
        crash.here("before-register")
        answer = await self._post("/agent/v1/register", wire.encode(report))
        said = wire.decode(answer, Registered)
        self.young_until_s = 0.0
        crash.here("after-register")
        self.session = Session(
            session=said.session,
            epoch=said.epoch,
            leader_uuid=said.leader_uuid,
            leader=said.leader,
            lease=said.lease,
        )
        self.seq = self.count = 0
        self.programs = said.programs
        self.owner.post(SessionOpened(control=self.url, session=self.session))
        self.state = "leads" if said.leader else "stands by"
        if said.read_only:
            self.state = "reads only: this agent is too old for it, upgrade llmgw here"
        self.tried.set()
        shards = len(report.shards)
        log.info(
            "registered", control=self.url, session=said.session, state=self.state, shards=shards
        )
        self.said = ""
        self.on_joined()
        self.offer()

    async def _talk(self) -> None:
        """Both directions until one of them fails.

        No TaskGroup: up to Python 3.12 it forgets a cancellation that meets a failure, and the agent never ended.
        """
        both = [asyncio.ensure_future(self._commands()), asyncio.ensure_future(self._events())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)
        failed = [e for t in both if not t.cancelled() and (e := t.exception()) is not None]
        if failed:
            raise failed[0]

    # ------------------------------------------------ commands

    async def _commands(self) -> None:
        while True:
            session = self.session
            assert session is not None
            query = urlencode({"session": session.session, "after": self.seq})
            began = time.monotonic()
            raw = await self._call("GET", f"/agent/v1/commands?{query}", b"", POLL_S)
            said = wire.decode(raw, Polled)
            self._leadership(session, said)
            for plain in sorted(said.commands, key=_seq):
                await self._obey(plain)
            if not said.commands and time.monotonic() - began < UNHELD_S:
                await asyncio.sleep(UNHELD_S)

    async def _obey(self, plain: dict[str, Any]) -> None:
        """One command; one of a newer control that this agent does not know is refused, not choked on."""
        try:
            command: Command = msgspec.convert(plain, Command)
        except msgspec.ValidationError as e:
            self._not_understood(plain, str(e))
            return
        if command.seq > self.seq:
            newer = unknown(plain, msgspec.to_builtins(command))
            await self.owner.obey(self.url, command, newer)
            self.seq = command.seq
            crash.here("after-applied")

    def _not_understood(self, plain: dict[str, Any], error: str) -> None:
        seq = _seq(plain) or self.seq
        refusal = Refusal(
            seq=seq,
            shard=str(plain.get("shard", "")),
            incarnation=str(plain.get("incarnation", "")),
            reason="not_understood",
            why=f"this agent does not understand the command {plain.get('kind')!r}: {error}",
        )
        log.warning("refused", control=self.url, reason=refusal.reason, why=refusal.why)
        self.outbox.refused.append(refusal)
        self.seq = max(self.seq, seq)
        self.offer()

    def _leadership(self, session: Session, said: Polled) -> None:
        """A standby may become the leader within a session."""
        leader, epoch = said.leader, said.epoch or session.epoch
        if (leader, epoch) != (session.leader, session.epoch):
            self.session = replace(session, leader=leader, epoch=epoch)
            self.state = "leads" if leader else "stands by"
            self.owner.post(SessionOpened(control=self.url, session=self.session))

    # ------------------------------------------------ events

    async def _events(self) -> None:
        while True:
            await self.outbox.ready.wait()
            self.outbox.ready.clear()
            if self.again:
                raise OverError(self.again)
            await self._tell()

    async def _tell(self) -> None:
        box, state, session = self.outbox, self.owner.state, self.session
        assert session is not None
        changed, gone, refused = set(box.changed), set(box.gone), list(box.refused)
        records = [r for k in sorted(changed) if (r := state.records.get(k)) is not None]
        self.count += 1
        events = Events(
            session=session.session,
            n=self.count,
            applied=self.seq,
            shards=tuple(shard_report(r, secrets=True) for r in records),
            gone=tuple(sorted(gone)),
            gpus=state.gpus,
            gpus_error=state.gpus_error,
            foreign=state.foreign,
            refused=tuple(refused),
            digest=wire.shards_digest(node_report(state, for_register=False).shards),
            at=self.stamps.now(),
        )
        box.changed.clear()
        box.gone.clear()
        box.refused.clear()
        crash.here("before-told")
        try:
            answer = await self._post("/agent/v1/events", wire.encode(events))
        except BaseException:
            box.changed |= changed
            box.gone |= gone
            box.refused[:0] = refused
            raise
        crash.here("after-told")
        said = wire.decode(answer, EventsReply)
        self.programs = said.programs
        if said.match:
            self.failures = self.disputes = 0
            self.disputed_until_s, self.dispute_said = 0.0, False
        else:
            self._dispute(asked=bool(refused))

    def _dispute(self, *, asked: bool) -> None:
        """Control's picture is another, or it asks for our epoch: registers again, which should settle it.

        What it does not settle (another version reads a field otherwise) must not cost a session every few seconds:
        commands die with it.
        """
        now = time.monotonic()
        if not asked and now < self.disputed_until_s:
            if not self.dispute_said:
                words = "control's picture of this node stays another, whatever is reported"
                log.warning(words, control=self.url)
            self.dispute_said = True
            return
        self.disputes += 1
        self.disputed_until_s = now + min(DISPUTE_CAP_S, DISPUTE_S * 2 ** min(self.disputes, 10))
        why = "control's picture of this node differs"
        raise OverError(why)

    # ------------------------------------------------ calls

    def _with_token_now(self) -> None:
        with suppress(LlmgwError):  # it cannot be read: as it was
            token = self._token_now()
            if token and token.isascii() and token.isprintable():  # else no header can carry it
                self.calls.shown = token

    async def _post(self, path: str, body: bytes) -> bytes:
        return await self._call("POST", path, body, CALL_S)

    async def _call(self, method: str, path: str, body: bytes, limit_s: float) -> bytes:
        answer = await self.calls.call(method, path, body, limit_s)
        if answer.ok:
            return answer.content
        message, hint, code = error_of(answer)
        if answer.status == HTTPStatus.GONE:
            raise OverError(message or "control does not know this session")
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            self._with_token_now()
            message = f"control {self.url} refuses this agent ({answer.status}): {message}"
            if answer.status == HTTPStatus.UNAUTHORIZED:
                hint = hint or "set LLMGW_NODE_TOKEN to control's"
        else:
            asked = path.partition("?")[0]
            message = f"control {self.url} answered {answer.status} to {asked}: {message}"
        raise TalkError(message, hint, code=code)


def _seq(plain: dict[str, Any]) -> int:
    """A higher number makes lower ones heard: they are taken in this order, whichever they came in."""
    seq = plain.get("seq")
    return seq if isinstance(seq, int) else 0


def back_off_s(failures: int) -> float:
    """Full jitter, so that a fleet does not come back in step."""
    return _jitter.uniform(0.0, min(BACKOFF_CAP_S, BACKOFF_S * 2 ** min(failures, 10)))


def is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        (url.hostname or "").encode("idna")
        named = bool(url.hostname) and url.port != 0
    except ValueError:
        return False
    return url.scheme in ("http", "https") and named and text.isprintable() and " " not in text
