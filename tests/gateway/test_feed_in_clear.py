"""A gateway's token never goes in clear to a control that speaks TLS: where others may read, it asks without."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from llmgw import tls
from llmgw.gateway.feed import Feed
from llmgw.gateway.settings import GatewaySettings
from tests.gateway.rig import rig, run
from tests.gateway.test_feed import Log

TOKEN = "s3cret-of-the-fleet"


#: What a TLS server says to plain HTTP (RFC 8446 6: alert, decode_error).
ALERT = b"\x15\x03\x01\x00\x02\x02\x32"
FINE = b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"


class Wire(asyncio.Protocol):
    """Writes down what crosses the network, and says one thing to all of it."""

    def __init__(self, crossed: list[bytes], answer: Callable[[bytes], bytes]) -> None:
        self._crossed, self._answer = crossed, answer

    @override
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._crossed.append(data)
        answer = self._answer(data)
        self._transport.write(answer)
        if answer == ALERT:
            self._transport.close()


@pytest.mark.parametrize("answer", [ALERT, FINE])
def test_it_is_asked_without_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(tls, "speaks", lambda _host, _port: answer == ALERT)

    async def scenario() -> None:
        crossed: list[bytes] = []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Wire(crossed, lambda _: answer), "0.0.0.0")
        port = server.sockets[0].getsockname()[1]
        log = Log()
        async with rig() as world:
            # 0.0.0.0 is this box to a client, and no loopback address to us.
            settings = GatewaySettings(
                controls=(f"http://0.0.0.0:{port}",), state_dir=tmp_path, token=TOKEN
            )
            feed = Feed(world.gateway, world.dialer, settings, log)
            (control,) = feed.controls
            await feed.poll(control, limit_s=5.0)
            assert crossed[0].startswith(b"GET /healthz ")
            shown = [TOKEN.encode() in told for told in crossed]
            if answer == ALERT:
                assert shown == [False]
                assert f"it speaks TLS: use https://0.0.0.0:{port}" in log.lines[0][1]["why"]
            else:
                assert shown == [False, True]
                await feed.poll(control, limit_s=5.0)
                assert len(crossed) == 3, "once it has answered it is known"
            while control.endpoint.idle:
                control.endpoint.idle.pop().close()
        server.close()

    run(scenario())


def test_by_tls_there_is_nothing_to_ask_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        crossed: list[bytes] = []
        pair = tls.own(tmp_path, [])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Wire(crossed, lambda _: FINE), "0.0.0.0", ssl=context
        )
        port = server.sockets[0].getsockname()[1]
        async with rig() as world:
            url = f"https://0.0.0.0:{port}#{tls.pin_of(pair.cert)}"
            settings = GatewaySettings(controls=(url,), state_dir=tmp_path, token=TOKEN)
            feed = Feed(world.gateway, world.dialer, settings, Log())
            (control,) = feed.controls
            await feed.poll(control, limit_s=5.0)
            assert len(crossed) == 1
            assert TOKEN.encode() in crossed[0]
            while control.endpoint.idle:
                control.endpoint.idle.pop().close()
        server.close()

    run(scenario())
