"""One health probe: a bounded HTTP request to an engine, by hand, so no proxy setting and no pool is in between.

Answers for: 2xx is up, llama.cpp's "Loading model" is loading, refused and everything else are not up. May not count or
judge: k of n is `core.supervise.health`'s.
"""

from __future__ import annotations

import asyncio
import json
import os
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

import msgspec

TIMEOUT_S, TOKEN_TIMEOUT_S = 2.0, 30.0
BODY_MAX_BYTES = 64 * 1024


#: What a server that is none, or is broken, makes of a request.
BROKEN = (OSError, ValueError, EOFError, asyncio.LimitOverrunError)


class Outcome(NamedTuple):
    outcome: Literal["ok", "loading", "refused", "failed"]
    detail: str = ""
    progress: float | None = None


class Answer(NamedTuple):
    status: int
    body: bytes


async def health(host: str, port: int, path: str) -> Outcome:
    return await _asked(host, port, _get(host, port, path, ""), TIMEOUT_S)


def listened_to(there: bool) -> Outcome:  # noqa: FBT001 - the one fact there is
    """Of a worker that speaks no HTTP; it is not connected to, for it may take one client at a time."""
    return Outcome("ok") if there else Outcome("refused", "nothing listens on its port")


async def listens(host: str, port: int) -> str:
    """Why no connection is to be had there, or ""; it is closed again at once."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer in {TIMEOUT_S:g} s"
    except ConnectionRefusedError:
        return "connection refused"
    except OSError as e:  # asyncio puts words of its own into `strerror`
        return os.strerror(e.errno).lower() if e.errno else str(e)
    writer.close()
    return ""


async def one_token(
    host: str, port: int, model: str, api_key: str, timeout_s: float = TOKEN_TIMEOUT_S
) -> Outcome:
    """Does it really generate? `/health` is 200 while a rank is dead (engines.md 5)."""
    body = {"model": model, "prompt": "1", "max_tokens": 1}
    request = _post(host, port, "/v1/completions", api_key, body)
    return await _asked(host, port, request, timeout_s)


async def load(host: str, port: int, path: str, model: str, timeout_s: float) -> Outcome:
    """Ollama loads with its first request; one without a prompt loads and generates nothing (docs.ollama.com, FAQ).

    It is waited for to the end, for a load is aborted when its client goes away. 400 is a model that only embeds: it
    loads with the first request that is one for it.
    """
    request = _post(host, port, path, "", {"model": model, "stream": False})
    seen = await _asked(host, port, request, timeout_s)
    only_embeds = seen.detail.startswith(f"HTTP {HTTPStatus.BAD_REQUEST:d}")
    return Outcome("ok") if only_embeds else seen


async def knock(host: str, port: int, step: str, api_key: str, timeout_s: float) -> Outcome:
    """POST to one of an engine's own doors (`agent.doors`): a path, and JSON after a space."""
    path, _, body = step.partition(" ")
    content = json.loads(body) if body else {}
    return await _asked(host, port, _post(host, port, path, api_key, content), timeout_s)


async def said(host: str, port: int, path: str) -> str:
    """What it answers there; "" where it does not."""
    try:
        answer = await fetch(host, port, path, "")
    except (TimeoutError, *BROKEN):
        return ""
    return answer.body.decode(errors="replace") if answer.status == HTTPStatus.OK else ""


async def fetch(host: str, port: int, path: str, api_key: str) -> Answer:
    """For passing an engine's own metrics on; raises one of `BROKEN`."""
    async with asyncio.timeout(TIMEOUT_S):
        return await _exchange(host, port, _get(host, port, path, api_key), 4 << 20)


async def _asked(host: str, port: int, request: bytes, timeout_s: float) -> Outcome:
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _exchange(host, port, request, BODY_MAX_BYTES)
    except ConnectionRefusedError:
        return Outcome("refused", "connection refused")
    except TimeoutError:
        return Outcome("failed", f"no answer in {timeout_s:g} s")
    except BROKEN as e:
        return Outcome("failed", str(e) or type(e).__name__)
    if answer.status // 100 == 2:  # noqa: PLR2004  2xx
        return Outcome("ok")
    message = _message(answer.body)
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE and "loading" in message.lower():
        return Outcome("loading", message)
    return Outcome("failed", f"HTTP {answer.status}{f': {message}' if message else ''}")


def _get(host: str, port: int, path: str, api_key: str) -> bytes:
    return f"{_head('GET', host, port, path, api_key)}\r\n".encode()


def _post(host: str, port: int, path: str, api_key: str, content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    head = _head("POST", host, port, path, api_key)
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _head(method: str, host: str, port: int, path: str, api_key: str) -> str:
    name = f"[{host}]" if ":" in host else host
    key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {name}:{port}\r\n{key}Connection: close\r\n"


async def _exchange(host: str, port: int, request: bytes, most: int) -> Answer:
    reader, writer = await asyncio.open_connection(host, port, limit=BODY_MAX_BYTES)
    try:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            msg = f"not HTTP: {first[:60]!r}"
            raise ValueError(msg)
        return Answer(int(rest.split(" ")[0]), await _body(reader, lines, most))
    finally:
        writer.close()


async def _body(reader: asyncio.StreamReader, lines: list[str], most: int) -> bytes:
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    if "content-length" in headers:
        return await reader.readexactly(min(int(headers["content-length"]), most))
    parts, left = [], most
    while left > 0 and (part := await reader.read(min(left, 65536))):
        parts.append(part)
        left -= len(part)
    return _dechunked(b"".join(parts)) if "transfer-encoding" in headers else b"".join(parts)


def _dechunked(raw: bytes) -> bytes:
    out = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        count = int(size.partition(b";")[0] or b"0", 16)
        if not count:
            break
        out, raw = out + raw[:count], raw[count + 2 :]
    return out


def _message(body: bytes) -> str:
    """What an error body says."""
    try:
        plain: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return body[:120].decode(errors="replace").strip()
    error = plain.get("error", plain) if isinstance(plain, dict) else plain
    return str(error.get("message", "") if isinstance(error, dict) else error)[:120]
