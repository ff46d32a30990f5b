"""The other controls of one lease: a standby tells the leader that it is there, and hears what it cannot know itself.

Answers for: who stands by and how far behind, where gateways find all of them, and operators' words that a standby
passes on. May not decide, nor make anybody lead: the lease does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import httpx
import msgspec
from msgspec import Struct

from llmgw import __version__, config, tls
from llmgw.control.catalogs import Catalogs
from llmgw.control.keep import Keeper
from llmgw.control.keys import Keys
from llmgw.control.lease import Holder, Lease
from llmgw.control.node_tokens import NodeToken, NodeTokens
from llmgw.control.sessions import Sessions
from llmgw.control.settings import ControlSettings
from llmgw.control.story import Story
from llmgw.core.types.state import CatalogLoaded, Event, State
from llmgw.errors import LlmgwError

#: A standby says so often that it is there; after three times that it is taken for gone.
TELL_S = 2.0
GONE_S = 3 * TELL_S
CALL_S = 2.0
#: What an operator asks may wait for the slowest node.
FORWARD_S = 120.0
#: A catalog that stays another than the leader's is read again so often.
LOOK_S = 30.0
#: Who passed it on; it is not passed on again.
FORWARDED = "x-llmgw-forwarded-by"
#: Asked of this control itself, whoever leads.
_OWN = frozenset({"/api/v1/plan", "/api/v1/shutdown", "/api/v1/standbys"})
_LEADERS_GET = frozenset({"/api/v1/keys", "/api/v1/tokens"})
Json = dict[str, Any]


class Told(Struct, frozen=True, kw_only=True):
    """What a standby says of itself; `nodes` are those that are registered with it."""

    name: str
    url: str = ""
    version: str = ""
    catalog: str = ""
    nodes: tuple[str, ...] = ()


class Answer(Struct, frozen=True, kw_only=True):
    """What the leader says. `nodes` are registered with it; `keys` are hashes, which a standby's routes need.

    `tokens`: of nodes, which register with a standby too; None where it does not say, or both have one file of them.
    """

    epoch: int = 0
    catalog: str = ""
    nodes: tuple[str, ...] = ()
    keys: Keys = {}
    tokens: tuple[NodeToken, ...] | None = None
    controls: tuple[str, ...] = ()


class Control(Protocol):
    """As much of one as its peers are about."""

    settings: ControlSettings
    name: str
    state: State
    lease: Lease
    sessions: Sessions
    keeper: Keeper
    story: Story
    leading: bool
    epoch_seen: int
    catalogs: Catalogs

    @property
    def node_tokens(self) -> NodeTokens: ...
    @property
    def leader(self) -> Holder | None: ...
    def poke(self) -> None: ...
    async def observe(self, event: Event) -> None: ...


class Peers:
    def __init__(self, control: Control) -> None:
        self._control = control
        #: standbys by name, each with when it was heard last
        self._standbys: dict[str, tuple[Told, float]] = {}
        self._problem = ""
        self._lacking = ""
        self._urls: tuple[str, ...] = ()
        #: the leader's, as it said last
        self.epoch = 0
        self._looked = ("", 0.0)

    # -- the leader's side

    def heard(self, told: Told, now: float) -> Answer:
        control = self._control
        if not control.leading:
            raise not_leading(control)
        new = told.name not in self._standbys
        self._standbys[told.name] = (told, now)
        if new:
            control.poke()  # gateways are told where it is
        return Answer(
            epoch=control.state.epoch,
            catalog=control.state.catalog.digest,
            nodes=control.sessions.nodes(),
            keys=control.keeper.keys,
            tokens=None if control.lease.name == "file" else control.node_tokens.own(),
            controls=self.urls(now),
        )

    def _alive(self, now: float) -> list[tuple[Told, float]]:
        self._standbys = {n: s for n, s in self._standbys.items() if now - s[1] < GONE_S}
        return [s for _, s in sorted(self._standbys.items())]

    def urls(self, now: float) -> tuple[str, ...]:
        """Where gateways find a control: the leader first."""
        control = self._control
        own = control.lease.about.url
        if control.leading:
            found = [own, *(told.url for told, _ in self._alive(now))]
        else:
            leader = control.leader
            found = [leader.url if leader else "", *self._urls, own]
        return tuple(dict.fromkeys(u for u in found if u))

    # -- a standby's side

    async def run(self) -> None:
        """Until cancelled: while another leads, tell it."""
        while True:
            await asyncio.sleep(TELL_S / 4 if self._control.leading else TELL_S)
            leader = self._control.leader
            if self._control.leading or leader is None or not leader.url:
                self._problem = self._lacking = ""
                continue
            async with _client(leader.url, CALL_S) as client:
                await self._tell_while(client, leader.url)

    async def _tell_while(self, client: httpx.AsyncClient, url: str) -> None:
        """As long as this one leads: another has another certificate."""
        while (leader := self._control.leader) is not None and leader.url == url:
            try:
                await self._tell(client, leader)
            except (httpx.HTTPError, msgspec.MsgspecError) as e:
                why = str(e) or type(e).__name__
                self._problem = f"the leader {leader.name} at {leader.place} does not answer: {why}"
            await asyncio.sleep(TELL_S)
            if self._control.leading:
                return

    async def _tell(self, client: httpx.AsyncClient, leader: Holder) -> None:
        control = self._control
        told = Told(
            name=control.name,
            url=control.lease.about.url,
            version=__version__,
            catalog=control.state.catalog.digest,
            nodes=control.sessions.nodes(),
        )
        answer = await client.post(
            "/api/v1/standbys",
            content=msgspec.json.encode(told),
            headers=_headers(control.settings),
        )
        if not answer.is_success:
            self._problem = (
                f"the leader {leader.name} at {leader.place} refuses this standby: "
                f"{answer.status_code} {answer.text[:160]}"
            )
            return
        said = msgspec.json.decode(answer.content, type=Answer)
        self._problem, self.epoch = "", said.epoch
        lacking = sorted(set(said.nodes) - set(control.sessions.nodes()))
        self._lacking = (
            f"{', '.join(lacking)} registered with the leader and not with this standby: "
            f"add its URL there: llmgw agent --control {leader.url} --control {told.url}"
            if lacking
            else ""
        )
        if said.tokens is not None and (news := control.node_tokens.adopt(said.tokens)):
            control.story.tell("tokens", f"node tokens as the leader has them: {news}")
        await self._catalog(said.catalog)
        if (said.keys, said.controls) != (control.keeper.keys, self._urls):
            control.keeper.keys, self._urls = said.keys, said.controls
            control.poke()

    async def _catalog(self, leaders: str) -> None:
        """The leader has another: is the file another by now too? Once for each that it has, and now and then."""
        control, loop = self._control, asyncio.get_running_loop()
        if leaders == control.state.catalog.digest:
            return
        if leaders == self._looked[0] and loop.time() < self._looked[1]:
            return
        self._looked = (leaders, loop.time() + LOOK_S)
        try:
            new, _ = await asyncio.to_thread(control.catalogs.read)
            if not control.leading and new.digest != control.state.catalog.digest:
                await control.observe(CatalogLoaded(new))
        except LlmgwError:
            pass  # the leader says what is wrong with it, and this one reads it again when it leads

    # -- for people

    def said(self) -> str:
        return self._problem or self._lacking

    def document(self, now: float) -> Json:
        """`leader` of the status. `answered_by`: who says so."""
        control = self._control
        leader = control.leader
        mine = control.leading or leader is None
        about = control.lease.about if mine else leader
        assert about is not None
        epoch = control.state.epoch if mine else (max(about.epoch, self.epoch, control.epoch_seen))
        return {
            "name": control.name if mine else about.name,
            "epoch": epoch,
            "lease": control.lease.name,
            "standbys": [self._row(told, heard_s, now) for told, heard_s in self._alive(now)],
            "url": about.place or None,
            "answered_by": control.name,
            "leading": control.leading,
        }

    def _row(self, told: Told, heard_s: float, now: float) -> Json:
        state = self._control.state
        mine = self._control.sessions.nodes()
        return {
            "name": told.name,
            "url": config.pinned(told.url)[0] or None,
            "version": told.version,
            "lag_s": round(now - heard_s, 1),
            "missing": sorted(set(mine) - set(told.nodes)),
            "same_catalog": told.catalog == state.catalog.digest,
        }


def not_leading(control: Control) -> LlmgwError:
    leader = control.leader
    if leader is None:
        msg = "no control leads now, as far as this one knows"
        return LlmgwError(msg, "ask again in a moment", code="not_leading", status=503)
    msg = f"{leader.name} leads, this control stands by"
    return LlmgwError(msg, f"ask {leader.place or 'that one'}", code="not_leading", status=409)


def leaders(control: Control, method: str, path: str, query: str = "") -> bool:
    """Whether a standby passes this on; `leader=1` asks for the leader's plan, which is the one that is carried out."""
    if control.leading or control.leader is None or not path.startswith("/api/v1/"):
        return False
    if path == "/api/v1/plan" and "leader=1" in query.split("&"):
        return True
    return path in _LEADERS_GET if method == "GET" else path not in _OWN


async def passed_on(
    control: Control, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    """The leader's answer to what an operator asked of a standby: status and JSON."""
    leader = control.leader
    if leader is None or not leader.url or FORWARDED in headers:
        raise not_leading(control)
    keep = {k: headers[k] for k in ("authorization",) if k in headers}
    keep |= {"content-type": "application/json", FORWARDED: control.name}
    try:
        async with _client(leader.url, FORWARD_S) as client:
            answer = await client.request(method, path, content=body, headers=keep)
    except httpx.ConnectError as e:
        msg = f"{leader.name} at {leader.place} leads and cannot be reached: {e}"
        raise LlmgwError(msg, "ask again in a moment", code="not_leading", status=503) from e
    except httpx.HTTPError as e:
        msg = f"{leader.name} at {leader.place} was asked and did not answer; it may still be done"
        raise LlmgwError(msg, "`llmgw status` shows it", code="not_leading", status=503) from e
    return answer.status_code, answer.content


def _client(url: str, timeout_s: float) -> httpx.AsyncClient:
    """Of a leader: by its pin, which is part of where it said it is."""
    plain, trust = config.pinned(url)
    verify = tls.verify(plain, trust)
    return httpx.AsyncClient(base_url=plain, timeout=timeout_s, trust_env=False, verify=verify)


def _headers(settings: ControlSettings) -> dict[str, str]:
    head = {"Content-Type": "application/json"}
    return head | ({"Authorization": f"Bearer {settings.token}"} if settings.token else {})
