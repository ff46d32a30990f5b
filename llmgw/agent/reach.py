"""How this agent is reached and how it reached control: its certificate, and what it keeps of the control it joined.

Answers for: TLS by default beyond loopback (contract/http.md), and that a restart needs no environment. May not talk
to anybody, nor decide whom to believe: settings that are given come before what is kept.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from urllib.parse import urlsplit

import structlog

from llmgw import config, tls
from llmgw.agent.disk import write_durably
from llmgw.agent.settings import AgentSettings
from llmgw.config import Address

log = structlog.get_logger()


def pair_of(settings: AgentSettings, *, loopback: bool) -> tls.Pair | None:
    """The certificate to serve with; None where plain HTTP is right, or meant."""
    own = tls.given(settings.tls_cert, settings.tls_key)
    if own is not None or loopback or settings.insecure:
        return own
    return tls.own(settings.state_dir, [socket.gethostname(), settings.node, settings.address])


def remember(settings: AgentSettings, urls: Sequence[str], here: str) -> None:
    """Once a control has taken us: what a restart has to know. Without a secret or a pin there is nothing to keep."""
    where = (settings.address_given, settings.address)
    kept = config.Join(tuple(urls), settings.trust, settings.token, *where, settings.words_given)
    with suppress(OSError):  # it is told again; meanwhile the settings that were given hold
        _say(settings, here)
        if (kept.token or kept.trust.pins) and config.joined(settings.state_dir) != kept:
            document = {
                "controls": kept.controls,
                "pins": kept.trust.pins,
                "ca": kept.trust.ca,
                "token": kept.token,
                "address": kept.address,
                "last_address": kept.last_address,
                "words": dict(kept.words),
            }
            write_durably(settings.state_dir / config.JOIN_FILE, json.dumps(document).encode())
            log.info("kept for the next start", file=config.JOIN_FILE, controls=list(urls))


def _say(settings: AgentSettings, here: str) -> None:
    """For `llmgw status` on this box with control away; nothing where it listens where everybody looks anyway."""
    path = settings.state_dir / config.URL_FILE
    if here in {"", config.AGENT_URL}:
        path.unlink(missing_ok=True)
    elif not path.exists() or path.read_text().strip() != here:
        path.write_text(f"{here}\n")


def towards(control: str) -> str:
    """`--address auto`: the address of ours that packets to control leave from, "" for no way. Nothing is sent."""
    url = urlsplit(control)
    host, port = url.hostname or "", url.port or 1
    with suppress(OSError):
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(family, kind)) as sock:
            sock.connect(place)
            return str(sock.getsockname()[0])
    return ""


def renewed(settings: AgentSettings, here: str) -> None:
    """The same, where the command line of this box knows it by a certificate that is over."""
    with suppress(OSError):
        if (settings.state_dir / config.URL_FILE).exists():
            _say(settings, here)


def url_of(address: str, port: int, pin: str) -> str:
    """How this agent is asked; `pin` "": it speaks plain HTTP."""
    plain = Address(address.strip("[]"), port).url
    return f"https{plain[4:]}" if pin else plain
