"""Control, put together: state dir, lease, inventory, loop, API and gateway; signals; and its end.

Answers for: the order in which things are taken and given back, one clear error when something cannot be had, and an
end that leaves the rest running. It may not decide anything about the fleet.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Generator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from functools import partial

import uvicorn
from typing_extensions import override

from llmgw.certificate import Certificate
from llmgw.config import Address
from llmgw.control import reach, reloads
from llmgw.control.api import app
from llmgw.control.crash import crash
from llmgw.control.guard import Tokens
from llmgw.control.keys import ROUTES
from llmgw.control.lease import Holder, lease, noted
from llmgw.control.listen import advertised, bound
from llmgw.control.loop import Control
from llmgw.control.settings import ControlSettings
from llmgw.control.spawn import Gateway, make_folder
from llmgw.control.store import Store
from llmgw.control.story import Story
from llmgw.core.types.state import GatewayGone
from llmgw.errors import EXIT_INTERRUPTED, EXIT_OK, LlmgwError, UsageError
from llmgw.systemd import Service

try:
    from uvloop import new_event_loop
except ImportError:  # the stock loop is a sound fall-back
    from asyncio import new_event_loop  # type: ignore[assignment]

#: Answers under way get this long when control ends; long polls are answered at once.
GRACE_S = 3
#: A promoted standby whose gateway cannot be had tries again after this.
AGAIN_S = 2.0


def run(settings: ControlSettings) -> int:
    """Serve until a signal or an operator ends it; LlmgwError where it cannot start or must not go on."""
    settings.check()
    # "reload" must not end a control that is still starting, nor be lost: it is heard once somebody listens.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(settings))


async def _run(settings: ControlSettings) -> int:
    """Everything that is taken here is given back in reverse, whatever happens in between."""
    service = Service()
    story = Story()
    make_folder(settings.state_dir)
    store = Store(settings.inventory_path, warn=partial(story.tell, "inventory", level="warning"))
    certificate = Certificate(reach.pair_of(settings), partial(story.tell, "certificate"))
    async with AsyncExitStack() as stack:
        held = lease(settings.lease, settings.inventory_path, store, standby=settings.standby)
        stack.callback(held.release)
        if held.held or held.name != "file":
            noted.note(settings.inventory_path, held.name)
        listener = service.listener(*settings.listen) or bound(
            settings.listen, "control", "--listen"
        )
        stack.enter_context(closing(listener))
        passed = service.listener(*settings.gateway) if settings.gateway is not None else None
        for where in service.let_go():
            why = f"a socket for {where} was passed, which neither --listen nor --gateway names"
            story.tell("socket", why, level="warning")
        service.keep("control", listener)
        control = Control(settings, store=store, lease=held, story=story)
        stack.callback(_keep, control)
        tokens = Tokens(
            *(settings.token, [settings.node_token], control.node_tokens),
            wide=not settings.listen.loopback,
        )
        here = Address(*listener.getsockname()[:2])
        _named(control, here, certificate.pin)
        control.notices.append(certificate.said)
        now = control.now()
        story.begin(now)
        if held.held:
            control.lead(now)
            _need_keys(settings, control)
        else:
            control.stand_by(now)
        gateway = None
        if settings.gateway is not None:
            gateway = Gateway(settings, story, tokens, passed)
            stack.callback(gateway.let_go)
            control.notices.append(gateway.said)
            # The gateway of a folder is its leader's: a standby for the same file finds it when it leads.
            if held.held or held.name != "file":
                await _prepared(gateway, service)
        # The first pass before the first question: whoever asks finds a picture and routes (A50).
        control.turn()
        control.on_turn = service.alive
        process = Process(control, gateway, tokens, listener, service, certificate=certificate)
        return await process.run()


def _named(control: Control, here: Address, pin: str) -> None:
    """Where others find this control, by the certificate of now."""
    told = control.settings.advertised(here.port)
    place = told.url if told else advertised(here, control.settings.lease)
    url = reach.spoken(place, pin)
    control.lease.about = Holder(control.name, url)
    control.node_tokens.urls = reach.urls(here, pin, first=url if told else "")
    control.node_tokens.near = reach.spoken(here.near.url, pin)


async def _prepared(gateway: Gateway, service: Service) -> None:
    await gateway.prepare()
    if gateway.listener is not None:
        service.keep("gateway", gateway.listener)


def _need_keys(settings: ControlSettings, control: Control) -> None:
    """Beyond loopback nobody is served without a key. Asked of a first start only: a later one must not fail for it."""
    open_to_all = settings.gateway is not None and not settings.gateway.loopback
    served = (settings.gateway_dir / ROUTES).exists()
    if open_to_all and not settings.insecure and not control.keeper.keys and not served:
        msg = f"--gateway {settings.gateway} is open to the network, and there is no API key for clients"
        hint = (
            f"`llmgw key add NAME --inventory {settings.inventory_path}` makes one; "
            "where everybody on that network may use the models: --insecure"
        )
        raise UsageError(msg, hint)


def _keep(control: Control) -> None:
    """The last picture, whole: what status and the dry run show while control is down."""
    if control.leading:
        now = control.now()
        crash("before_last_keep")
        control.keeper.keep(control.state, now, durable=True, all_of_it=True)
        crash("after_last_keep")
    control.store.close()


class Server(uvicorn.Server):
    """Signals are `Process`'s: uvicorn would end itself and leave the rest."""

    @override
    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Process:
    def __init__(
        self,
        control: Control,
        gateway: Gateway | None,
        tokens: Tokens,
        listener: socket.socket,
        service: Service,
        *,
        certificate: Certificate,
    ) -> None:
        self._service = service
        self._certificate = certificate
        self._control = control
        self._gateway = gateway
        self._listener = listener
        self._ended = asyncio.Event()
        self._exit_code = EXIT_OK
        self._refused: LlmgwError | None = None
        pair = certificate.pair
        config = uvicorn.Config(
            app(control, tokens, shut_down=self._down),
            http="h11",  # httptools collects headers and trailers without end, also a stranger's
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=GRACE_S,
            ssl_certfile=None if pair is None else str(pair.cert),
            ssl_keyfile=None if pair is None else str(pair.key),
        )
        config.load()
        certificate.on(config.ssl)
        certificate.renewed.append(self._renamed)
        self._server = Server(config)

    async def run(self) -> int:
        async with asyncio.TaskGroup() as group:
            self._signals(group)
            await self._serve(group)
        if self._refused is not None:
            raise self._refused
        return self._exit_code

    async def _decide(self) -> None:
        """The loop; what it must not go on with ends control in the same orderly way as a signal."""
        try:
            await self._control.run()
        except LlmgwError as e:
            self._refused = e
            self._ended.set()

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        control = self._control
        where = self._where
        serving = group.create_task(self._server.serve([self._listener]))
        deciding = group.create_task(self._decide())
        tasks = []
        if self._gateway is not None:
            tasks.append(group.create_task(self._clients(self._gateway)))
        tasks.append(group.create_task(control.lease.run(control.poke, lambda: control.epoch_seen)))
        tasks.append(group.create_task(control.peers.run()))
        tasks.append(group.create_task(self._certificate.run()))
        tasks.append(group.create_task(self._known()))
        self._welcome(where)
        await self._ended.wait()
        self._farewell()
        control.close()
        self._server.should_exit = True
        await asyncio.wait([serving, deciding])
        for task in tasks:
            task.cancel()

    @property
    def _where(self) -> Address:
        return Address(*self._listener.getsockname()[:2])

    @property
    def _here(self) -> str:
        """How this box itself reaches us."""
        return reach.spoken(self._where.near.url, self._certificate.pin)

    def _renamed(self) -> None:
        """By another certificate: the next table tells gateways, and one that is started from here on has the pin."""
        _named(self._control, self._where, self._certificate.pin)
        if self._gateway is not None:
            self._gateway.url = self._here
        if self._control.promoted.is_set():
            self._remember()
        self._control.poke()

    async def _clients(self, gateway: Gateway) -> None:
        """The gateway, found or started; a standby's once it leads, and then whatever it takes: it leads already."""
        while not gateway.prepared:
            await self._control.promoted.wait()
            try:
                await _prepared(gateway, self._service)
            except LlmgwError as e:
                gateway.problem = f"the gateway cannot be started: {e.message}"
                await asyncio.sleep(AGAIN_S)
        await gateway.run(self._here, self._gone)

    async def _known(self) -> None:
        """To the command line of this box, once it leads: a standby of the same folder is not the one to ask."""
        await self._control.promoted.wait()
        self._remember()

    def _remember(self) -> None:
        control = self._control
        reach.remember(control.settings.state_dir, self._here, control.node_tokens.urls)

    async def _gone(self, gateway: str) -> None:
        with suppress(LlmgwError):
            await self._control.observe(GatewayGone(gateway))

    def _signals(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end, EXIT_OK)
        loop.add_signal_handler(signal.SIGINT, self._end, EXIT_INTERRUPTED)
        loop.add_signal_handler(signal.SIGHUP, lambda: group.create_task(self._reload()))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    async def _reload(self) -> None:
        self._certificate.reread()
        with suppress(LlmgwError), self._service.reloading():  # said in the log and in `status`
            await reloads.reload(self._control)

    def _end(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._ended.set()

    def _down(self) -> int:
        self._ended.set()
        if self._gateway is None:
            return 0
        pid = self._gateway.pid
        self._gateway.end()
        return pid

    def _welcome(self, where: Address) -> None:
        settings, story = self._control.settings, self._control.story
        self._control.story.log.info(
            "serving",
            listen=str(where),
            pin=self._certificate.pin or "plain HTTP",
            inventory=str(settings.inventory_path),
            catalog=str(settings.catalog),
        )
        self._service.ready(f"serving {where}")
        if not self._certificate.pin and not settings.listen.loopback:
            why = f"{where} is plain HTTP: tokens and orders cross the network unencrypted"
            story.tell("insecure", why, level="warning")

    def _farewell(self) -> None:
        """Says what keeps running, for whoever pressed Ctrl-C."""
        gateway, log = self._gateway, self._control.story.log
        engines = sum(s.holds for n in self._control.state.nodes.values() for s in n.shards)
        self._service.stopping(f"ends, {engines} engines keep running")
        pid = gateway.pid if gateway is not None and gateway.stays else 0
        if pid:
            log.info(
                "control ends; engines and the gateway keep running", engines=engines, gateway=pid
            )
        else:
            log.info("control ends; engines keep running", engines=engines)
