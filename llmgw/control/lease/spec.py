"""The words of `--lease etcd://…`: which servers, how they are spoken to, how long the lease is.

`etcd://H1:2379,H2:2379[/PREFIX][?ttl=10s&ca=FILE&cert=FILE&key=FILE]`, `etcds://` for TLS. User and password come from
LLMGW_ETCD_USER and LLMGW_ETCD_PASSWORD: `ps` shows arguments. May not open anything but the files it names.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import NoReturn
from urllib.parse import parse_qsl

from msgspec import Struct

from llmgw.catalog.units import parse_duration
from llmgw.errors import LlmgwError, UsageError

TTL_S = 10.0
TTL_MIN_S, TTL_MAX_S = 2.0, 300.0
PREFIX = "llmgw"
OPTIONS = ("ttl", "ca", "cert", "key")


class Store(Struct, frozen=True):
    """`servers` are base URLs; `call_s` bounds each call, so that two of them fit between renewal and deadline."""

    servers: tuple[str, ...]
    prefix: str = PREFIX
    ttl_s: float = TTL_S
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = ""

    @property
    def call_s(self) -> float:
        """From renewal to deadline is a third of the ttl: every server may be asked once, a lone one twice."""
        return self.ttl_s / 3 / max(len(self.servers), 2)

    def tls(self) -> ssl.SSLContext | bool:
        """False for plain HTTP."""
        if not self.servers[0].startswith("https:"):
            return False
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as e:
            msg = f"--lease: the TLS files for etcd cannot be used: {e.strerror or e}"
            raise LlmgwError(msg, "check ca=, cert= and key=, PEM files this user may read") from e
        return context


def check(spec: str) -> Store | None:
    """What the words of `--lease` name, None for `file`; UsageError for anything else."""
    if spec == "file":
        return None
    if spec.startswith(("etcd://", "etcds://")):
        return store(spec)
    msg = f"--lease {spec[:80]}: is neither file nor etcd://HOST:PORT"
    raise UsageError(msg, "file is for one host, etcd://H1:2379,H2:2379 for several")


def store(spec: str, env: Mapping[str, str] = os.environ) -> Store:
    """UsageError where it cannot work."""
    scheme, _, rest = spec.partition("://")
    rest, _, query = rest.partition("?")
    hosts, _, prefix = rest.partition("/")
    if "@" in hosts:
        _no("it holds a user", "secrets by LLMGW_ETCD_USER and LLMGW_ETCD_PASSWORD, never here")
    servers = tuple(_server(scheme, host.strip()) for host in hosts.split(",") if host.strip())
    if not servers:
        _no("it names no server", "write it like etcd://127.0.0.1:2379")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        _no(f"it has no option {unknown[0]!r}", f"there are {', '.join(OPTIONS)}")
    files = [name for name in ("ca", "cert", "key") if options.get(name)]
    if files and scheme == "etcd":
        _no(f"{files[0]}= is for TLS", "write etcds://")
    if options.get("key") and not options.get("cert"):
        _no("key= without cert=", "name both, or one file with both as cert=")
    return Store(
        servers=servers,
        prefix=prefix.strip("/") or PREFIX,
        ttl_s=_ttl(options.get("ttl", "")),
        ca=options.get("ca", ""),
        cert=options.get("cert", ""),
        key=options.get("key", ""),
        user=env.get("LLMGW_ETCD_USER", "").strip(),
        password=env.get("LLMGW_ETCD_PASSWORD", "").strip(),
    )


def _server(scheme: str, host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not (name and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
        _no(f"{host!r} is not HOST:PORT", "write it like etcd://127.0.0.1:2379")
    return f"{'https' if scheme == 'etcds' else 'http'}://{host}"


def _ttl(text: str) -> float:
    if not text:
        return TTL_S
    try:
        found = parse_duration(text)
    except (LlmgwError, ValueError):
        found = None
    if found is None or not TTL_MIN_S <= found <= TTL_MAX_S:
        _no(f"ttl={text} is no time from {TTL_MIN_S:g}s to {TTL_MAX_S:g}s", "10s is the default")
    return float(round(found))  # etcd counts whole seconds


def _no(why: str, hint: str) -> NoReturn:
    """Without the words themselves: a password that somebody put there is not for the log."""
    msg = f"--lease etcd://…: {why}"
    raise UsageError(msg, hint)
