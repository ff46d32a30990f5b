"""The agent's life: lock the state dir, load the journal, re-attach, then serve, register and supervise until told.

Ending it leaves every engine running (F47). May not decide anything: it puts the parts together.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

import llmgw
from llmgw import config, tls
from llmgw.agent import (
    bearers,
    container_evidence,
    crash,
    lost,
    orphans,
    ports,
    process,
    reach,
    reattach,
)
from llmgw.agent.devices import Devices
from llmgw.agent.gpu import Gpus
from llmgw.agent.identity import Identity, open_state_dir
from llmgw.agent.journal import Journal
from llmgw.agent.link import Link, is_url
from llmgw.agent.logs import Logs
from llmgw.agent.loop import Loop
from llmgw.agent.perform import Performer
from llmgw.agent.settings import AgentSettings, check_node
from llmgw.agent.view import View
from llmgw.certificate import Certificate
from llmgw.core.supervise import initial_state
from llmgw.core.types.messages import Capacity, Foreign
from llmgw.core.types.node import NodeFacts, Renewed
from llmgw.core.types.record import Record
from llmgw.errors import EXIT_INTERRUPTED, EXIT_OK, LlmgwError, UsageError
from llmgw.loopback import here, is_loopback
from llmgw.systemd import Service

log = structlog.get_logger()
#: So long the first registration may hold up the API and the probes.
FIRST_S = 1.0


class ListenError(LlmgwError):
    """The API's address cannot be had."""

    code = "listen"


def run(settings: AgentSettings) -> int:
    """Run until SIGTERM (0) or Ctrl-C (130). Raises `LlmgwError` where it cannot start."""
    _check(settings)
    gpus = Gpus(settings.gpus, power_limit_w=settings.gpu_power_limit_w)
    former = partial(lost.node_id, settings.node, settings.controls, settings.state_dir)
    identity = open_state_dir(settings.state_dir, former=former)
    with contextlib.closing(identity.lock):
        listener = _listen(settings.listen)
        with listener or contextlib.nullcontext():
            pair = None if listener is None else _pair(settings, listener)
            return asyncio.run(_Agent(settings, identity, gpus, pair).live(listener))


def _check(settings: AgentSettings) -> None:
    for url in settings.controls:
        if not is_url(url):
            msg = f"--control {url}: not a URL"
            raise UsageError(msg, "write http://HOST:8801")
    check_node(settings.node)
    if _unspecified(settings.address):
        msg = f"--address {settings.address} is every address of this box, and nobody can call that"
        raise UsageError(msg, "give the one by which control and gateway reach this node")
    if not (settings.token.isascii() and settings.token.isprintable()):
        msg = "the node token holds characters that no header can carry"
        raise UsageError(msg, "set LLMGW_NODE_TOKEN to the one that control was started with")
    host = settings.listen.rpartition(":")[0]
    open_to_all = host and not is_loopback(host.strip("[]"))
    if open_to_all and not (settings.token or settings.operator_token or settings.insecure):
        msg = f"--listen {settings.listen} is reachable from other machines and no token is set"
        hint = (
            "`llmgw token` on control's box prints the line with LLMGW_NODE_TOKEN; or listen on 127.0.0.1, or give "
            "--insecure to mean it"
        )
        raise UsageError(msg, hint)


def _unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _listen(listen: str) -> socket.socket | None:
    if listen in ("", "none"):
        return None
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    hint = "give another --listen HOST:PORT, or --listen none"
    if not (port.isdecimal() and int(port) in range(1 << 16)):
        msg = f"--listen {listen}: not HOST:PORT"
        raise UsageError(msg, hint)
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family)
    except OSError as e:
        said = e.strerror.partition(" (while")[0] if e.strerror else e
        by = f" by {ports.holder(int(port))}" if e.errno == errno.EADDRINUSE else ""
        msg = f"--listen {listen} cannot be had: {said}{by}"
        raise ListenError(msg, hint) from e


def _pair(settings: AgentSettings, listener: socket.socket) -> tls.Pair | None:
    loopback = is_loopback(_name(listener).rpartition(":")[0].strip("[]"))
    return reach.pair_of(settings, loopback=loopback)


def facts_of(settings: AgentSettings, identity: Identity, listen: str, pin: str = "") -> NodeFacts:
    """What does not change while this process lives, but for the pin."""
    host, _, port = listen.rpartition(":")
    shown = bool(port) and not is_loopback(host)
    inspect = reach.url_of(settings.address, int(port), pin) if shown else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return NodeFacts(
        node=settings.node,
        node_id=identity.node_id,
        instance=identity.instance,
        version=llmgw.__version__,
        boot_id=process.boot_id(),
        address=settings.address,
        loopback=here(),
        inspect=inspect,
        inspect_pin=pin if shown else "",
        controls=bearers.places(settings.controls),
        pools=settings.pools,
        labels=settings.labels,
        fabrics=settings.fabrics,
        circuit=settings.circuit,
        capacity=Capacity(
            cpu_cores=float(len(os.sched_getaffinity(0))),
            host_memory_bytes=memory,
            power_w=settings.power_w,
            ports=settings.ports,
        ),
    )


class _Agent:
    def __init__(
        self, settings: AgentSettings, identity: Identity, gpus: Gpus, pair: tls.Pair | None
    ) -> None:
        self.settings = settings
        self.certificate = Certificate(pair, _say)
        self.identity = identity
        self.logs = Logs(settings.state_dir)
        self.journal = Journal(settings.state_dir)
        controls = bearers.places(settings.controls)
        home = str(settings.state_dir.resolve())
        self.devices = Devices(gpus, identity.node_id, controls, home)
        self.service = Service()
        self.stopped_by: signal.Signals | None = None

    async def live(self, listener: socket.socket | None) -> int:
        address = "" if listener is None else _name(listener)
        facts = facts_of(self.settings, self.identity, address, self.certificate.pin)
        if why := orphans.adopt():
            log.warning("what engines leave behind is not ours to reap", why=why)
        survey = reattach.Survey(facts.node_id)
        loaded = self.journal.load(self.identity.boot_before)
        crash.here("after-load")
        released = self.journal.released(facts.boot_id)
        boxes = await container_evidence.first(
            self.settings.state_dir, loaded.records, facts.node_id, survey.marks
        )
        found = container_evidence.orphans(loaded.records, boxes, facts.boot_id, released)
        records = (*loaded.records, *found)
        records += tuple(reattach.orphans(records, survey, facts.boot_id, released, boxes.answered))
        loop = Loop(initial_state(facts, records, loaded.token), self.journal)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._until_told(tasks)
                performer = Performer(
                    facts=facts,
                    state_dir=self.settings.state_dir,
                    logs=self.logs,
                    devices=self.devices,
                    post=loop.post,
                    tasks=tasks,
                    adopts=not why,
                )
                performer.containers.first = boxes
                loop.reattach(performer, survey)
                performer.containers.settled(loop.state.records)
                crash.here("after-reattach")
                failed = self.identity.remember_boot(facts.boot_id)
                crash.here("after-boot")
                if failed:
                    log.warning(failed)
                await self.devices.read()
                await self.devices.look(frozenset())
                loop.feed(self.devices.seen(loop.state.records, performer.known))
                self._start(tasks, loop, performer, listener)
                log.info(
                    "agent is up",
                    node=facts.node,
                    node_id=facts.node_id,
                    listen=address or "none",
                    engines=len(_running(loop)),
                    gpus=None if loop.state.gpus is None else len(loop.state.gpus),
                )
                self.service.ready(f"{facts.node}, listens on {address or 'nothing'}")
        except* _ToldError:
            pass
        self.journal.settle()
        names = [r.start.shard for r in _running(loop)]
        log.info("agent ends, its engines keep running", engines=names)
        return EXIT_INTERRUPTED if self.stopped_by == signal.SIGINT else EXIT_OK

    def _until_told(self, tasks: asyncio.TaskGroup) -> None:
        told = asyncio.Event()

        def tell(number: signal.Signals) -> None:
            self.stopped_by = number
            self.service.stopping("ends, its engines keep running")
            told.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, tell, number)
        # Unheard it would end the agent: whoever has the daemons reload sends it to all of them.
        loop.add_signal_handler(signal.SIGHUP, self._reload)

        async def wait() -> None:
            await told.wait()
            raise _ToldError

        tasks.create_task(wait())

    def _reload(self) -> None:
        if self.certificate.pair is None:
            log.info("nothing to reload here, control is asked")
        else:
            log.info("the certificate is read again; for all else control is asked")
            self.certificate.reread()

    def _renewed(self, loop: Loop, listener: socket.socket) -> None:
        """Who connects from now on sees another certificate: control is told, and the command line of this box."""
        if loop.state.facts.inspect_pin:
            loop.post(Renewed(self.certificate.pin))
            for link in loop.links.values():  # also one that registers at this very moment
                link.register_again("the certificate of this agent is another")
        reach.renewed(self.settings, self._here(listener))

    def _start(
        self,
        tasks: asyncio.TaskGroup,
        loop: Loop,
        performer: Performer,
        listener: socket.socket | None,
    ) -> None:
        # Each once: a second link would end the first one's session as soon as it registers, and so on.
        urls = dict.fromkeys(url.rstrip("/") for url in self.settings.controls)
        token, trust = self.settings.token, self.settings.trust
        file = self.settings.state_dir / "node-token"
        again = partial(config.token, "LLMGW_NODE_TOKEN", file)
        node = self.settings.node
        links = [Link(loop, u, token, trust=trust, node=node, token_now=again) for u in urls]
        loop.links = {link.url: link for link in links}

        def joined() -> None:
            here = "" if listener is None else self._here(listener)
            reach.remember(self.settings, list(urls), here)

        for link in links:
            link.on_joined = joined
        if listener is not None:
            self.certificate.renewed.append(partial(self._renewed, loop, listener))
        tasks.create_task(self.certificate.run())
        reading = asyncio.Event()

        def beat() -> None:
            reading.set()
            self.service.alive()

        loop.on_beat = beat
        loop.beat_every_s = self.service.beats_within(loop.beat_every_s)
        loop.quiet_until_s = time.monotonic() + FIRST_S if links else 0.0
        tasks.create_task(loop.run())
        tasks.create_task(loop.bound_logs())
        tasks.create_task(self._read_gpus(reading, loop, performer))
        for link in links:
            tasks.create_task(link.run())
        tasks.create_task(self._after_first(loop, performer, links, listener))

    def _here(self, listener: socket.socket) -> str:
        """How the command line of this box asks this agent."""
        near = config.address(_name(listener), "--listen").near
        pin = self.certificate.pin
        url = reach.url_of(near.host, near.port, pin)
        return f"{url}#{pin}" if pin else url

    async def _after_first(
        self, loop: Loop, performer: Performer, links: list[Link], listener: socket.socket | None
    ) -> None:
        """Control hears of the engines first: probing fifty of them, and loading a server, take longer than re-attach.

        Who asks meanwhile waits in the listener's queue.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await asyncio.gather(*(link.tried.wait() for link in links[:1]))
        loop.quiet_until_s = 0.0
        loop.wake()
        if listener is None:
            return
        serve = await asyncio.to_thread(_server)
        await serve(self._view(loop, performer, links), listener, self.certificate)

    async def _read_gpus(self, reading: asyncio.Event, loop: Loop, performer: Performer) -> None:
        """A reading a heartbeat; a driver that hangs delays the next one and nothing else."""
        while True:
            await reading.wait()
            reading.clear()
            await self.devices.read()
            await self.devices.look(_programs(loop))
            seen = self.devices.seen(loop.state.records, performer.known)
            news = _strangers(seen.foreign) != _strangers(loop.state.foreign)
            loop.post(seen)
            for link in loop.links.values() if news else ():
                link.offer()  # it goes out once the loop has taken what was posted before

    def _view(self, loop: Loop, performer: Performer, links: list[Link]) -> View:
        settings = self.settings
        return View(
            state=lambda: loop.state,
            controls=lambda: [{"url": link.url, "state": link.state} for link in links],
            secrets_of=performer.secrets_of,
            metrics=lambda: _metrics(loop),
            logs=self.logs,
            tokens=frozenset(t for t in (settings.token, settings.operator_token) if t),
            names=frozenset(n.lower() for n in (settings.node, settings.address, *settings.names)),
        )


async def _metrics(loop: Loop) -> tuple[bytes, str]:
    from llmgw.agent import metrics  # noqa: PLC0415  4 MB that only a scraped agent pays

    return await metrics.exposition(loop.state, loop.beat_s)


def _server() -> Callable[[View, socket.socket, Certificate], Awaitable[None]]:
    from llmgw.agent.serve import serve  # noqa: PLC0415  Starlette and uvicorn

    return serve


def _say(why: str, /, *, level: str) -> None:
    (log.warning if level == "warning" else log.info)(why)


class _ToldError(Exception):
    """A signal asked us to end."""


def _strangers(foreign: tuple[Foreign, ...]) -> set[tuple[int, str]]:
    return {(f.pid, f.gpu) for f in foreign}


def _programs(loop: Loop) -> frozenset[str]:
    """What the controls' catalogs start."""
    return frozenset(name for link in loop.links.values() for name in link.programs)


def _running(loop: Loop) -> list[Record]:
    return [r for r in loop.state.records.values() if r.pid is not None]


def _name(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
