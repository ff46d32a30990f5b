"""A token never goes in clear to a port that speaks TLS: whoever writes http:// for https:// is told, and is not read.

0.0.0.0 is this box to a client, and no loopback address to us: there nobody else reads along, and nothing is asked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from llmgw import tls
from llmgw.agent import knock
from llmgw.agent.calls import Calls
from llmgw.agent.doctor import doors
from llmgw.cli import ask, stream
from llmgw.config import Trust
from llmgw.errors import UnreachableError
from tests.cli.test_tls import Server

TOKEN = "s3cret-of-the-fleet"


class Wire(Server):
    """With every first byte that crossed the network, before anything is made of it."""

    @override
    def __init__(self, pair: tls.Pair | None) -> None:
        self.crossed: list[bytes] = []
        super().__init__(pair, "0.0.0.0")

    @override
    def _spoken(self, sock: socket.socket) -> socket.socket:
        self.crossed.append(sock.recv(1 << 16, socket.MSG_PEEK))
        return super()._spoken(sock)


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Wire]:
    made = Wire(tls.own(tmp_path, []))
    yield made
    made.close()


@pytest.fixture
def plain() -> Iterator[Wire]:
    made = Wire(None)
    yield made
    made.close()


def peer(url: str) -> ask.Peer:
    return ask.Peer("control", url, TOKEN, "start it")


def by_get(url: str) -> str:
    ask.get(peer(url), "/x")
    return ""


def by_post(url: str) -> str:
    ask.post(peer(url), "/x", {"a": 1})
    return ""


def by_stream(url: str) -> str:
    list(stream.lines(peer(url), "/x"))
    return ""


def by_agent(url: str) -> str:
    async def first() -> str:
        calls = Calls(url, Trust(), token=TOKEN, node="")
        try:
            await knock.knock(calls, 5)
        except OSError as e:
            return ": ".join(await knock.trouble(url, e))
        finally:
            calls.close()
        return ""

    return asyncio.run(first())


WAYS: dict[str, Callable[[str], str]] = {
    "get": by_get,
    "post": by_post,
    "followed": by_stream,
    "agent": by_agent,
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_asked_without_first(secure: Wire, way: str) -> None:
    url = secure.url("http", "0.0.0.0")
    try:
        said = WAYS[way](url)
    except UnreachableError as e:
        said = f"{e.message}: {e.hint}"
    assert f"it speaks TLS: use https://0.0.0.0:{secure.port}" in said
    assert "`llmgw token`" in said
    assert secure.crossed
    assert not any(TOKEN.encode() in told for told in secure.crossed)


@pytest.mark.parametrize("way", WAYS)
def test_where_plain_http_is_spoken_it_is_sent_as_before(plain: Wire, way: str) -> None:
    url = plain.url("http", "0.0.0.0")
    assert WAYS[way](url) == ""
    first, *rest = plain.crossed
    assert b"/healthz" in first
    assert TOKEN.encode() not in first
    if way != "agent":  # its next word is the registration
        assert TOKEN.encode() in rest[0]


def test_on_loopback_nobody_reads_along(plain: Wire) -> None:
    by_get(plain.url("http"))
    assert len(plain.crossed) == 1


def test_the_doctor_asks_without_first_too(secure: Wire) -> None:
    answer = doors.ask(secure.url("http", "0.0.0.0"), "/healthz", TOKEN)
    assert answer.status == 0
    assert not any(TOKEN.encode() in told for told in secure.crossed)
