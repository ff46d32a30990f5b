"""Where a gateway serves from: its locked folder and its listening socket. New, inherited, or those of the one before.

Answers for: refusing a place that is not to be had, with the fact. It may not serve, and it ends nobody: a gateway
whose place is taken serves until `Place.old` is told otherwise.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog

from llmgw import handover
from llmgw.errors import LlmgwError, UnreachableError, UsageError
from llmgw.gateway.door import Door, Doorman, InUseError, StateDir
from llmgw.gateway.settings import GatewaySettings, address
from llmgw.handover import Old
from llmgw.systemd import Service

BACKLOG = 4096
#: A gateway that starts, ends or changes hands is asked again for this long.
PATIENCE_S = 20.0
ASK_S = 0.1

T = TypeVar("T")


class Place(NamedTuple):
    """`token`: the one control is called with. `old`: the gateway that still serves here."""

    state_dir: StateDir
    listener: socket.socket
    token: str
    old: Old | None = None


def place(settings: GatewaySettings, service: Service) -> Place:
    if settings.takeover:
        found = _old_or_lock(settings.state_dir)
        if isinstance(found, Old):
            return _taken(settings, service, found)
        structlog.get_logger().info(
            "no gateway to take over from: an ordinary start", state_dir=str(settings.state_dir)
        )
        state_dir = found
    else:
        state_dir = StateDir(settings.state_dir)
    return Place(state_dir, _listener(settings, service), settings.token)


async def occupied(
    place: Place, doorman: Doorman, serving: Callable[[], Awaitable[T]], log: Any
) -> tuple[T, Door]:
    """The place with somebody in it: `serving` begins to accept."""
    old = place.old
    if old is None:
        # First the door: a control that was killed since it spawned us asks there for the listener.
        door = Door(place.state_dir, place.listener, doorman, place.token)
        return await serving(), door
    # The other way round: until we serve, the old one is the gateway, and it goes on if we are killed here.
    served = await serving()
    door = Door(place.state_dir, place.listener, doorman, place.token, settled=False)
    place.state_dir.sign()
    answered = await asyncio.to_thread(old.end)
    door.settled = True
    log.info("took over", pid=old.gateway.pid, version=old.gateway.version, answered=answered)
    return served, door


def _old_or_lock(path: Path) -> Old | StateDir:
    """Who holds the lock has a door, but for moments: at its start, at its end, and while another one takes over."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return handover.takeover(path)
        except handover.RefusedError:
            raise
        except UnreachableError as e:
            unreachable = e
        try:
            return StateDir(path)
        except InUseError as e:
            if time.monotonic() > give_up_s:
                message = f"{e.message}, and cannot be taken over: {unreachable.message}"
                raise LlmgwError(message, "end that process: its clients are cut") from e
        time.sleep(ASK_S)


def _taken(settings: GatewaySettings, service: Service, old: Old) -> Place:
    where = spelled(old.listener)
    if not _wanted(settings, old.listener):
        old.keep()
        message = f"the gateway (pid {old.gateway.pid}) serves {where}, not {settings.listen}"
        raise UsageError(message, f"give --listen {where}, or stop it first")
    host, port = old.listener.getsockname()[:2]
    passed = service.listener(host, port)
    if passed is not None:
        passed.close()  # the same one, by another way
    _take_passed(service, old.listener)
    structlog.get_logger().info(
        "takes over", listen=where, pid=old.gateway.pid, version=old.gateway.version
    )
    token = settings.token or old.token
    return Place(StateDir(settings.state_dir, old.lock), old.listener, token, old)


def _wanted(settings: GatewaySettings, listener: socket.socket) -> bool:
    """Port 0 is any."""
    if settings.listen_fd is not None:
        with _inherited(settings.listen_fd) as inherited:
            return bool(inherited.getsockname() == listener.getsockname())
    assert settings.listen is not None
    host, port = address(settings.listen)
    where = listener.getsockname()
    try:
        hosts = {found[4][0] for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return where[0] in hosts and port in (0, where[1])


def _take_passed(service: Service, listener: socket.socket) -> None:
    for where in service.let_go():
        structlog.get_logger().warning("a socket was passed that --listen does not name", at=where)
    service.keep("gateway", listener)


def spelled(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listener(settings: GatewaySettings, service: Service) -> socket.socket:
    if settings.listen_fd is not None:
        return _inherited(settings.listen_fd)
    assert settings.listen is not None
    host, port = address(settings.listen)
    listener = service.listener(host, port) or _bound(settings, host, port)
    _take_passed(service, listener)
    return listener


def _bound(settings: GatewaySettings, host: str, port: int) -> socket.socket:
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
