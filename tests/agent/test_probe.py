"""One probe: what each answer of an engine means. The engine is a few bytes on a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from llmgw.agent import probe
from llmgw.agent.probe import Outcome
from scripts.ports import free_port

LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


def answer(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def against(said: bytes | None, ask: Callable[[int], Awaitable[object]]) -> tuple[object, bytes]:
    """What `ask` makes of a server that says this and closes (None: says nothing), and what it was asked."""
    asked = b""
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        if said is None:
            await reader.read()
        else:
            writer.write(said)
        writer.close()
        await writer.wait_closed()
        served.set()

    async def talk() -> object:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            got = await ask(server.sockets[0].getsockname()[1])
            await served.wait()
            return got

    return asyncio.run(talk()), asked


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (answer("200 OK", b'{"status":"ok"}'), Outcome("ok")),
        (answer("200 OK", b""), Outcome("ok")),
        (answer("204 No Content", b""), Outcome("ok")),
        (answer("503 Service Unavailable", LOADING), Outcome("loading", "Loading model")),
        (
            answer("404 Not Found", b'{"error":"model \'x\' not found"}'),
            Outcome("failed", "HTTP 404: model 'x' not found"),
        ),
        (
            answer("503 Service Unavailable", b'{"error":{"message":"draining"}}'),
            Outcome("failed", "HTTP 503: draining"),
        ),
        (answer("500 Internal", b"Oops"), Outcome("failed", "HTTP 500: Oops")),
        (answer("500 Internal", b"[1]"), Outcome("failed", "HTTP 500: [1]")),
        (answer("404 Not Found", b""), Outcome("failed", "HTTP 404")),
        (b"HTTP/1.1 200 " + b"x" * 70000, Outcome("failed", "")),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", Outcome("failed", "not HTTP: 'SSH-2.0-OpenSSH_9'")),
        (
            b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n4b\r\n"
            + LOADING
            + b"\r\n0\r\n\r\n",
            Outcome("loading", "Loading model"),
        ),
    ],
)
def test_health(said: bytes, outcome: Outcome) -> None:
    got, asked = against(said, lambda port: probe.health("127.0.0.1", port, "/health"))
    assert isinstance(got, Outcome)
    assert (got.outcome, got.progress) == (outcome.outcome, outcome.progress)
    assert got.detail == outcome.detail or not outcome.detail
    assert asked.startswith(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:")


def test_cut_off_answers_and_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    got, _ = against(b"HTTP/1.1 200 OK\r\n", lambda port: probe.health("127.0.0.1", port, "/"))
    assert isinstance(got, Outcome)
    assert got.outcome == "failed"
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.1)
    got, _ = against(None, lambda port: probe.health("127.0.0.1", port, "/"))
    assert got == Outcome("failed", "no answer in 0.1 s")


def test_refused() -> None:
    got = asyncio.run(probe.health("127.0.0.1", free_port(), "/health"))
    assert got == Outcome("refused", "connection refused")


def test_one_real_token() -> None:
    got, asked = against(
        answer("200 OK", b"{}"), lambda port: probe.one_token("127.0.0.1", port, "alpha", "k1")
    )
    assert got == Outcome("ok")
    assert asked.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer k1\r\n" in asked
    got, _ = against(
        answer("500 X", b'{"error":{"message":"EngineCore is dead"}}'),
        lambda port: probe.one_token("127.0.0.1", port, "alpha", ""),
    )
    assert got == Outcome("failed", "HTTP 500: EngineCore is dead")


def test_fetch_reads_to_the_end() -> None:
    said = b"HTTP/1.0 200 OK\r\n\r\nmetric 1\n"
    got, _ = against(said, lambda port: probe.fetch("127.0.0.1", port, "/metrics", ""))
    assert got == probe.Answer(200, b"metric 1\n")
