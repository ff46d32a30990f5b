"""A request that offers to go on as a WebSocket (RFC 6455): which model it means, and what of it an engine is told.

Answers for: the offer passed on as the client made it, without its key. It may not know sockets, nor read a frame: what
the two say to each other is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode

from llmgw.gateway.openai import Api, ProblemError

REALTIME = b"/v1/realtime"
REALTIME_API = Api(socket=True)
OFFER = (b"connection", b": ", b"Upgrade", b"\r\n", b"upgrade", b": ", b"websocket", b"\r\n")
#: Browsers can set no header of a WebSocket: OpenAI's own examples send the key as a subprotocol of this form
#: (platform.openai.com/docs/guides/realtime-websocket).
KEY_PROTOCOL = b"openai-insecure-api-key."
PROTOCOL = b"sec-websocket-protocol"
MODEL = "model"


def offered(method: bytes, own: dict[bytes, bytes]) -> bool:
    """Whether a request may become one: a GET without a body."""
    plain = not own.get(b"content-length", b"").strip(b"0") and b"transfer-encoding" not in own
    return method == b"GET" and plain and own.get(b"upgrade", b"").strip().lower() == b"websocket"


def passed_on(own: dict[bytes, bytes], forward: list[bytes]) -> list[bytes]:
    """The header lines for the engine; a key among the subprotocols becomes one of `own`."""
    lines: list[bytes] = []
    for name, colon, value, end in zip(*[iter(forward)] * 4, strict=True):
        said = value
        if name.lower() == PROTOCOL:
            words = [w.strip() for w in value.split(b",")]
            keys = [w for w in words if w.startswith(KEY_PROTOCOL)]
            if keys:
                own.setdefault(b"x-api-key", keys[0].removeprefix(KEY_PROTOCOL))
                said = b", ".join(w for w in words if w not in keys)
        if said:
            lines += (name, colon, said, end)
    return [*lines, *OFFER]


def model(target: bytes) -> str:
    """`ProblemError` where the query names none."""
    named = [value for name, value in _query(target) if name == MODEL]
    if len(named) == 1 and named[0]:
        return named[0]
    message = f"{REALTIME.decode()} is asked for {len(named)} models"
    hint = f"one in the query: {REALTIME.decode()}?model=NAME"
    raise ProblemError(400, "invalid_query", message, hint, param=MODEL)


def renamed(target: bytes, name: str) -> bytes:
    """The same for an engine that knows the model by another name."""
    path = target.partition(b"?")[0]
    query = [(n, name if n == MODEL else value) for n, value in _query(target)]
    return path + b"?" + urlencode(query).encode()


def _query(target: bytes) -> Iterable[tuple[str, str]]:
    try:
        query = target.partition(b"?")[2].decode()
        return parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    except ValueError as e:  # not UTF-8, or too many
        message = f"the query is refused: {e}"
        raise ProblemError(400, "invalid_query", message, param=MODEL) from e


def only_so() -> ProblemError:
    """For who asks without the offer (RFC 9110 15.5.22)."""
    message = f"{REALTIME.decode()} is a WebSocket"
    hint = "ask with a client that offers `Upgrade: websocket`, over HTTP/1.1 and without a body"
    headers = b"connection: Upgrade\r\nupgrade: websocket\r\n"
    return ProblemError(426, "websocket_only", message, hint, headers=headers)
