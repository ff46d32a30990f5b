"""How a gateway is started, checked before anything is opened.

Answers for: refusing what cannot work, with the fact and what to try. It may not read the environment or a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from msgspec import Struct

from llmgw.config import Trust
from llmgw.errors import UsageError
from llmgw.gateway.http1 import BODY_BYTES

WORKERS_MAX = 256


def default_workers() -> int:
    """The other half of the cores is the engines'."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


class GatewaySettings(Struct, frozen=True, kw_only=True):
    """`listen` binds a socket of our own; `listen_fd` is an inherited one that listens already. Exactly one of them.

    `takeover`: in place of the gateway of `state_dir`, which finishes what it has; where none is, an ordinary start.
    `token` is the node token (`LLMGW_NODE_TOKEN`), sent to control; empty where control asks for none.
    """

    controls: tuple[str, ...]
    state_dir: Path
    listen: str | None = None
    listen_fd: int | None = None
    token: str = ""
    trust: Trust = Trust()
    insecure: bool = False
    workers: int = 1
    takeover: bool = False
    drain_timeout_s: float = 600.0
    body_bytes: int = BODY_BYTES
    access_log: bool = True

    def check(self) -> None:
        """`UsageError` where this cannot serve."""
        if (self.listen is None) == (self.listen_fd is None):
            _refuse(
                "a gateway listens on an address or on an inherited socket",
                "give one of --listen and --listen-fd",
            )
        if not 1 <= self.workers <= WORKERS_MAX:
            _refuse(
                f"--workers {self.workers} is not from 1 to {WORKERS_MAX}",
                f"leave it out: one per two cores, here {default_workers()}",
            )
        if not self.controls:
            _refuse(
                "a gateway needs a control to hear of models",
                "give --control URL, e.g. http://127.0.0.1:8801",
            )
        for url in self.controls:
            _check_control(url)
        if self.listen is not None:
            address(self.listen)


def _refuse(message: str, hint: str) -> NoReturn:
    raise UsageError(message, hint)


def _check_control(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in ("", "/"):
        _refuse(f"control {url!r} is not a URL of control", "give http://HOST:PORT, or https")


def address(listen: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        _refuse(f"--listen {listen!r} is not HOST:PORT", "e.g. 127.0.0.1:8800 or [::1]:8800")
    return host.strip("[]"), int(port)
