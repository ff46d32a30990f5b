"""How control is reached: plain or by TLS, under which addresses, and where the command line of this box reads it.

Answers for: TLS by default beyond loopback (contract/http.md). May not know what is served, nor a token.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import closing, suppress
from fcntl import ioctl
from pathlib import Path

from llmgw import __version__, config, tls
from llmgw.config import Address
from llmgw.control.settings import ControlSettings
from llmgw.handover import Hello

#: linux/sockios.h: an interface's IPv4 address. One each; a box has no more that others should know.
SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("16s24x")
IF_INET6 = Path("/proc/net/if_inet6")
_GLOBAL = "00"


def pair_of(settings: ControlSettings) -> tls.Pair | None:
    """The certificate to serve with; None where plain HTTP is right, or meant."""
    own = tls.given(settings.tls_cert, settings.tls_key)
    if own is not None or settings.listen.loopback or settings.insecure:
        return own
    host = "" if settings.listen.every else settings.listen.host
    return tls.own(settings.state_dir, [socket.gethostname(), host])


def spoken(url: str, pin: str) -> str:
    """The URL with how it is to be spoken to, as `config.pinned` takes it apart; with no pin it is plain HTTP."""
    return f"https{url.removeprefix('http')}#{pin}" if pin else url


def lasting(gateway: Hello, url: str) -> bool:
    """Whether a gateway that was found may stay: of our version, with its parent, and it can reach us.

    It cannot where it calls this very place in another way: as before there was TLS, or by an old certificate.
    """
    stale = any(c != url and _place(c) == _place(url) for c in gateway.controls)
    return gateway.version in {"", __version__} and not gateway.orphan and not stale


def _place(url: str) -> str:
    return config.pinned(url)[0].partition("://")[2].rstrip("/")


def remember(folder: Path, here: str, elsewhere: Sequence[str]) -> None:
    """For the command line of this box, with LLMGW_CONTROL not set or control down. Nothing else depends on it.

    The first line is for this box itself, the others are for other boxes.
    """
    path = folder / config.URL_FILE
    with suppress(OSError):
        aside = path.with_suffix(".new")
        aside.write_text("\n".join([here, *elsewhere, ""]))
        aside.chmod(0o644)
        aside.replace(path)


def remembered(folder: Path) -> tuple[str, ...]:
    """Where other boxes found it when it ran last, each as `config.pinned` takes it."""
    try:
        return tuple((folder / config.URL_FILE).read_text().split()[1:])
    except (OSError, UnicodeDecodeError):
        return ()


def urls(listen: Address, pin: str, *, first: str = "") -> tuple[str, ...]:
    """Where other boxes find it, with its pin, the likeliest first; () while it listens on loopback alone.

    `first`: the one that was named, perhaps of a proxy before a loopback address.
    """
    if listen.loopback or first:
        return (first,) if first else ()
    hosts = _addresses(six=listen.host == "::") if listen.every else (listen.host,)
    return tuple(spoken(Address(host, listen.port).url, pin) for host in hosts)


def _addresses(*, six: bool) -> tuple[str, ...]:
    """Of this box, beyond loopback."""
    found = [
        _to("192.0.2.1", socket.AF_INET)
    ]  # a documentation net (RFC 5737): by the default route
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = ioctl(sock, SIOCGIFADDR, _IFREQ.pack(name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    if six:
        found += _sixes()
    return tuple(dict.fromkeys(a for a in found if a and not Address(a, 0).loopback))


def _sixes() -> list[str]:
    try:
        lines = [line.split() for line in IF_INET6.read_text().splitlines()]
    except OSError:
        return []
    return [
        socket.inet_ntop(socket.AF_INET6, bytes.fromhex(w[0])) for w in lines if w[3] == _GLOBAL
    ]


def _to(host: str, family: socket.AddressFamily) -> str:
    """The address that packets to `host` leave from; nothing is sent."""
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as sock, suppress(OSError):
        sock.connect((host, 1))
        return str(sock.getsockname()[0])
    return ""
