"""One question over HTTP to control or an agent, with the standard library: quick to start, plain to read.

Answers for: the token, a bound on every call, and one clear error each for no answer, no right and a refusal. It may
not retry.
"""

from __future__ import annotations

import http.client
import json
import os
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from llmgw import config
from llmgw.errors import (
    EXIT_DIFFERENCE,
    EXIT_UNKNOWN,
    LlmgwError,
    UnauthorisedError,
    UnreachableError,
    UsageError,
)

TIMEOUT_S = 10.0
#: A survey of the fleet, or its end, takes as long as the slowest node.
LONG_S = 120.0


class Peer(NamedTuple):
    """Whom to ask: `what` names it in errors, `hint` says what to try when nobody answers there."""

    what: str
    url: str
    token: str
    hint: str

    @property
    def place(self) -> str:
        return urlsplit(self.url).netloc or self.url


def control(given: config.Given) -> tuple[Peer, ...]:
    """The control planes that LLMGW_CONTROL or --control names; the first that answers speaks."""
    token = config.token("LLMGW_TOKEN", config.state_dir("control") / "token")
    hint = "start one with `llmgw up` or `llmgw control`; elsewhere: LLMGW_CONTROL=http://HOST:8801"
    return tuple(
        Peer("control", url, token, hint) for url in given.items("control", [config.CONTROL_URL])
    )


def agent(url: str) -> Peer:
    token = config.token("LLMGW_NODE_TOKEN", config.state_dir("agent") / "node-token")
    token = token or config.token("LLMGW_TOKEN")
    return Peer("agent", url, token, "start one with `llmgw up` or `llmgw agent`")


def get(peer: Peer, path: str, *, timeout_s: float = TIMEOUT_S) -> Any:
    return _ask(peer, "GET", path, None, timeout_s)


def post(peer: Peer, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Any:
    return _ask(peer, "POST", path, {} if body is None else body, timeout_s)


def first(peers: tuple[Peer, ...]) -> Peer:
    """The first that answers at all; the last one's error when none does."""
    for peer in peers[:-1]:
        try:
            get(peer, "/healthz", timeout_s=2.0)
        except UnreachableError:
            continue
        except LlmgwError:
            pass
        return peer
    return peers[-1]


def _ask(peer: Peer, method: str, path: str, body: object, timeout_s: float) -> Any:
    url = urlsplit(peer.url)
    if url.scheme not in {"http", "https"} or not url.hostname:
        msg = f"{peer.url!r} is not the address of {peer.what}"
        raise UsageError(msg, "write it like http://127.0.0.1:8801")
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    headers = {"Accept": "application/json"}
    if peer.token:
        headers["Authorization"] = f"Bearer {peer.token}"
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body).encode()
    connection = kind(url.hostname, url.port, timeout=timeout_s)
    try:
        connection.request(method, url.path.rstrip("/") + path, data, headers)
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException, ValueError) as e:
        msg = f"no {peer.what} at {peer.place}: {_reason(e, timeout_s)}"
        raise UnreachableError(msg, peer.hint) from e
    finally:
        connection.close()
    return _answer(peer, answer.status, raw)


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _answer(peer: Peer, status: int, raw: bytes) -> Any:
    try:
        found = json.loads(raw) if raw.strip() else None
    except ValueError as e:
        msg = f"what answers at {peer.place} is not {peer.what}: status {status}, not JSON"
        raise UnreachableError(
            msg, "is another program on that port? name the right one: LLMGW_CONTROL"
        ) from e
    if status < http.client.BAD_REQUEST:
        return found
    said = found.get("error") if isinstance(found, dict) else None
    said = said if isinstance(said, dict) else {}
    message = str(said.get("message") or f"{peer.what} at {peer.place} answered {status}")
    hint, code = str(said.get("hint") or ""), str(said.get("code") or "")
    if status == http.client.UNAUTHORIZED:
        raise UnauthorisedError(
            message, hint or "set LLMGW_TOKEN to the operator's token", code=code
        )
    error = LlmgwError(message, hint, code=code, status=status)
    error.exit_code = EXIT_UNKNOWN if status == http.client.SERVICE_UNAVAILABLE else EXIT_DIFFERENCE
    raise error
