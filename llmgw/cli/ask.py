"""One question over HTTP to control or an agent, with the standard library: quick to start, plain to read.

Answers for: the token, a bound on every call, and one clear error each for no answer, no right and a refusal. It may
not retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from llmgw import config
from llmgw.errors import (
    EXIT_DIFFERENCE,
    EXIT_UNKNOWN,
    LlmgwError,
    UnauthorisedError,
    UnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    import socket
    from pathlib import Path

#: Control beyond loopback speaks TLS, with a certificate of its own.
ELSEWHERE = "elsewhere: LLMGW_CONTROL and LLMGW_PIN, as `llmgw token` on its box prints them"
BAD_REQUEST, UNAUTHORISED, UNAVAILABLE = 400, 401, 503
TIMEOUT_S = 10.0
#: The first byte of what a TLS server says to plain HTTP (RFC 8446 5.1: alert).
_ALERT = b"\x15"
#: A survey of the fleet, or its end, takes as long as the slowest node.
LONG_S = 120.0


class _UnansweredError(OSError):
    """It was sent, at least in part, and what became of it nobody said."""


class TlsError(OSError):
    """Its certificate is not the one that was named, or one of the two speaks TLS and the other does not."""

    def __init__(self, words: str, hint: str) -> None:
        super().__init__(words)
        self.hint = hint


class Peer(NamedTuple):
    """Whom to ask: `what` names it in errors, `hint` says what to try when nobody answers there."""

    what: str
    url: str
    token: str
    hint: str
    trust: config.Trust = config.Trust()

    @property
    def place(self) -> str:
        return self.url.partition("://")[2].partition("/")[0] or self.url


def control(given: config.Given, folder: Path | None = None) -> tuple[Peer, ...]:
    """The control planes that LLMGW_CONTROL or --control names; the first that answers speaks.

    With none named: this box's, as it was reached last, or the one that this box's agent has joined. `folder`: that of
    its files, where it is not the usual one.
    """
    joined = folder.parent / "agent" if folder else config.state_dir("agent")
    folder = folder or config.inventory_path().parent
    token = config.token("LLMGW_TOKEN", folder / "token")
    hint = f"start one with `llmgw up` or `llmgw control`; {ELSEWHERE}"
    here, trust = config.pinned(config.reached(folder))
    known = config.Join((here,), trust) if here else config.joined(joined)
    urls = given.items("control", known.controls or [config.CONTROL_URL])
    before = known.of([config.pinned(url)[0] for url in urls]).trust
    trust = config.trust(given, *urls, before=before)
    places = [config.pinned(url, trust) for url in urls]
    return tuple(Peer("control", url, token, hint, trust) for url, trust in places)


def agent(url: str, token: str = "") -> Peer:
    """`url` may be HOST:PORT, as `llmgw up` takes it."""
    url = url if "://" in url else f"http://{url}"
    folder = config.state_dir("agent")
    token = token or config.token("LLMGW_NODE_TOKEN", folder / "node-token")
    token = token or config.joined(folder).token or config.token("LLMGW_TOKEN")
    url, trust = config.pinned(url)
    return Peer("agent", url, token, "start one with `llmgw up` or `llmgw agent`", trust)


def get(peer: Peer, path: str, *, timeout_s: float = TIMEOUT_S) -> Any:
    return _ask(peer, "GET", path, None, timeout_s)


def post(
    peer: Peer,
    path: str,
    body: object = None,
    *,
    timeout_s: float = TIMEOUT_S,
    only_looks: bool = False,
) -> Any:
    """`only_looks`: it has a body and changes nothing."""
    data = {} if body is None else body
    return _ask(peer, "POST", path, data, timeout_s, only_looks=only_looks)


def put(peer: Peer, path: str, body: object, *, timeout_s: float = TIMEOUT_S) -> Any:
    return _ask(peer, "PUT", path, body, timeout_s)


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


def _ask(
    peer: Peer,
    method: str,
    path: str,
    body: object,
    timeout_s: float,
    *,
    only_looks: bool = False,
) -> Any:
    import json

    base = address(peer)[2]
    data = None if body is None else json.dumps(body).encode()
    request = head(peer, method, f"{base}{path}", data)
    try:
        status, raw = _exchange(peer, request, timeout_s)
    except _UnansweredError as e:
        if method == "GET" or only_looks:
            msg = f"no {peer.what} at {peer.place}: {e}"
            raise UnreachableError(msg, peer.hint) from e
        # It waits in the socket of a control that hangs: who reads "no control" would think that nothing comes of it.
        msg = f"{peer.what} at {peer.place} does not answer ({e}); what was asked may still be done"
        raise UnreachableError(msg, "`llmgw status` shows it") from e
    except OSError as e:
        raise unreachable(peer, e, timeout_s) from e
    try:
        found = json.loads(raw) if raw.strip() else None
    except ValueError as e:
        msg = f"what answers at {peer.place} is not {peer.what}: {raw[:40]!r} is not JSON"
        hint = "is another program on that port? name the right one: LLMGW_CONTROL"
        raise UnreachableError(msg, hint) from e
    return answer(peer, status, found)


def head(peer: Peer, method: str, path: str, data: bytes | None = None) -> bytes:
    """The whole request. HTTP/1.0: its answer ends where the connection does."""
    lines = [f"{method} {path} HTTP/1.0", f"Host: {peer.place}", "Accept: application/json"]
    if peer.token:
        lines.append(f"Authorization: Bearer {peer.token}")
    if data is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + (data or b"")


def address(peer: Peer) -> tuple[str, int, str]:
    """Host, port and path of `http://HOST[:PORT][/PATH]`, or https."""
    scheme, _, rest = peer.url.partition("://")
    place, slash, path = rest.partition("/")
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    host, port = (host, port) if colon else (place, "443" if scheme == "https" else "80")
    if scheme not in {"http", "https"} or not host or not port.isdecimal() or int(port) >= 1 << 16:
        msg = f"{peer.url!r} is not the address of {peer.what}"
        raise UsageError(msg, "write it like http://127.0.0.1:8801")
    return host.strip("[]"), int(port), f"{slash}{path}".rstrip("/")


def connect(peer: Peer, timeout_s: float) -> socket.socket:
    """Over https only once the other side has proved who it is: nothing has been asked yet, least of all the token."""
    import socket

    host, port, _ = address(peer)
    if peer.token and peer.url.startswith("http://") and not config.Address(host, port).loopback:
        _knock(peer, timeout_s)
    sock = socket.create_connection((host, port), timeout_s)
    if peer.url.startswith("http://"):
        return sock
    from llmgw import tls

    try:
        return tls.client(peer.trust).wrap_socket(sock, server_hostname=host)
    except BaseException as e:
        sock.close()
        words, hint = tls.trouble(e)
        if words:
            raise TlsError(words, hint or peer.hint) from e
        raise


def _knock(peer: Peer, timeout_s: float) -> None:
    """A question without the token before one with it: on its way to a port of TLS anybody could read it."""
    bare = peer._replace(token="")
    try:
        _exchange(bare, head(bare, "GET", f"{address(peer)[2]}/healthz"), timeout_s)
    except _UnansweredError as e:
        raise OSError(str(e)) from e  # what was asked was not: nothing comes of it


def unreachable(peer: Peer, error: OSError, timeout_s: float) -> UnreachableError:
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        error = mute(peer) or error
    msg = f"no {peer.what} at {peer.place}: {reason(error, timeout_s)}"
    if isinstance(error, TlsError):
        return UnreachableError(msg, error.hint, code="tls")
    return UnreachableError(msg, peer.hint)


def mute(peer: Peer, said: bytes = b"") -> TlsError | None:
    """Why a listener that takes connections has no answer in HTTP: most likely it waits for TLS."""
    if not peer.url.startswith("http://") or said[:1] not in {b"", _ALERT}:
        return None
    from llmgw import tls

    host, port, _ = address(peer)
    if not tls.speaks(host, port):
        return None
    hint = "`llmgw token` on its box prints the URL and the --pin to use"
    if peer.what == "control" and config.Address(host, port).loopback:
        # Who asks there may have asked for just that line.
        own = f"on its own box `LLMGW_CONTROL=https://{peer.place}` will do"
        hint = f"{own}; elsewhere `llmgw token` there prints the URL and the --pin to use"
    return TlsError(f"it speaks TLS: use https://{peer.place}", hint)


def _exchange(peer: Peer, request: bytes, timeout_s: float) -> tuple[int, bytes]:
    """One exchange. http.client would be half of `status` (P10)."""
    parts = []
    with connect(peer, timeout_s) as sock:
        try:
            sock.sendall(request)
            while part := sock.recv(1 << 16):
                parts.append(part)
        except OSError as e:
            if isinstance(e, ConnectionError) and (tls := mute(peer)):
                raise tls from e
            raise _UnansweredError(reason(e, timeout_s)) from e
    top, _, body = b"".join(parts).partition(b"\r\n\r\n")
    first, *fields = top.decode("latin-1").split("\r\n")
    protocol, _, rest = first.partition(" ")
    length = next((f for f in fields if f.lower().startswith("content-length:")), "")
    wanted = length.partition(":")[2].strip()
    if not protocol.startswith("HTTP/") or not rest[:3].isdecimal():
        if tls := mute(peer, top):
            raise tls
        msg = f"it speaks no HTTP: {first[:40]!r}"
        raise OSError(msg) if first else _UnansweredError(msg)
    if wanted.isdecimal() and int(wanted) != len(body):
        msg = f"it broke off after {len(body)} of {wanted} bytes"
        raise _UnansweredError(msg)
    return int(rest[:3]), body


def reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def answer(peer: Peer, status: int, found: Any) -> Any:
    if status < BAD_REQUEST:
        return found
    said = found.get("error") if isinstance(found, dict) else None
    said = said if isinstance(said, dict) else {}
    message = str(said.get("message") or f"{peer.what} at {peer.place} answered {status}")
    hint, code = str(said.get("hint") or ""), str(said.get("code") or "")
    if status == UNAUTHORISED:
        hint = _other_token(peer) or hint or "set LLMGW_TOKEN to the operator's token"
        raise UnauthorisedError(message, hint, code=code)
    error = LlmgwError(message, hint, code=code, status=status)
    error.exit_code = EXIT_UNKNOWN if status == UNAVAILABLE else EXIT_DIFFERENCE
    raise error


def _other_token(peer: Peer) -> str:
    """What to do where this box has another token than was sent, or than its control was started with; else ""."""
    import os

    file = config.inventory_path().parent / "token"
    kept = config.token("", file, env={}) if os.access(file, os.R_OK) else ""
    given = os.environ.get("LLMGW_TOKEN", "").strip()
    if peer.what != "control" or not kept or given == kept:
        return ""
    if given:
        return f"`unset LLMGW_TOKEN`: {file} has another"
    if not config.Address(address(peer)[0], 0).loopback:
        return ""  # that of another box
    why = f"{file} has another token than control was started with"
    return f"{why}: restart control, engines and the gateway keep running"
