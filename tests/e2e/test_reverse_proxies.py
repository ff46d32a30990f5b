"""The two proxy configurations of docs/operations.md, run by the real programs in front of a real gateway.

Changed on the way: addresses, and no certificate. nginx and caddy are by `scripts/beds proxies`.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from scripts.fleet import Fleet, wait_for
from scripts.generated import ROOT
from scripts.ports import free_port
from tests.beds import needs
from tests.e2e.conftest import fake, model, write_catalog

PAGE = (ROOT / "docs/operations.md").read_text()
TOKENS, TOKEN_S = 10, 0.1
BOTH = [
    pytest.param("nginx", marks=needs("nginx", root=False)),
    pytest.param("caddy", marks=needs("caddy", root=False)),
]


def shown(kind: str, here: str, there: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    text = found[1].replace("127.0.0.1:8800", there)
    if kind == "caddy":
        return "{\nadmin off\n}\n" + text.replace("llm.example.org", f"http://{here}")
    text = re.sub(r"^ *ssl_.*\n", "", text, flags=re.MULTILINE).replace(
        "listen 443 ssl", f"listen {here}"
    )
    stores = "".join(
        f"{n}_temp_path tmp;" for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"daemon off; pid nginx.pid; error_log stderr; events {{}} http {{ access_log off; {stores} {text} }}"


@contextmanager
def proxy(kind: str, folder: Path, there: str) -> Iterator[str]:
    """Its URL; what it serves is at `there`."""
    here = f"127.0.0.1:{free_port()}"
    config = folder / f"{kind}.conf"
    config.write_text(shown(kind, here, there))
    words = {
        "nginx": ["nginx", "-p", str(folder), "-c", str(config), "-e", "stderr"],
        "caddy": ["caddy", "run", "--adapter", "caddyfile", "--config", str(config)],
    }[kind]
    env = {"PATH": "/usr/sbin:/usr/bin:/bin", "HOME": str(folder)}
    log = folder / f"{kind}.log"
    with (
        log.open("wb") as file,
        subprocess.Popen(words, env=env, stdout=file, stderr=file, cwd=folder) as process,
    ):
        try:
            wait_for(
                lambda: process.poll() is None and answers(f"http://{here}"), f"{kind}: {log}", 20
            )
            yield f"http://{here}"
        finally:
            process.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code > 0
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("proxied")
    command = fake("--alias", "alpha", "--tokens", str(TOKENS), "--token-interval-s", str(TOKEN_S))
    one = Fleet(folder, write_catalog(folder / "catalog.yaml", {"alpha": model(command)}))
    try:
        one.start("control", "agent")
        one.ready("alpha")
        one.served("alpha")
        yield one
    finally:
        one.close()


@pytest.mark.parametrize("kind", BOTH)
def test_a_stream_is_not_buffered(kind: str, fleet: Fleet, tmp_path: Path) -> None:
    body = {"model": "alpha", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    times = []
    with (
        proxy(kind, tmp_path, fleet.urls["gateway"].removeprefix("http://")) as url,
        httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=body, timeout=20, trust_env=False
        ) as answer,
    ):
        assert answer.status_code == 200
        times = [time.monotonic() for line in answer.iter_lines() if '" t' in line]
    assert len(times) == TOKENS
    assert times[-1] - times[0] > TOKEN_S * (TOKENS - 1) / 2, "they came together"


@pytest.mark.parametrize("kind", BOTH)
def test_a_client_that_goes_is_seen_by_the_gateway(kind: str, fleet: Fleet, tmp_path: Path) -> None:
    """Else the engine would go on for nobody."""
    body = {"model": "alpha", "stream": True, "messages": [{"role": "user", "content": "hello"}]}

    def in_flight() -> int:
        return int((fleet.status() or {"replicas": [{}]})["replicas"][0].get("in_flight") or 0)

    with proxy(kind, tmp_path, fleet.urls["gateway"].removeprefix("http://")) as url:
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=body, timeout=20, trust_env=False
        ) as answer:
            next(answer.iter_lines())
        begun = time.monotonic()
        wait_for(lambda: not in_flight(), "an idle replica", 10)
        assert time.monotonic() - begun < TOKENS * TOKEN_S + 5


@pytest.mark.parametrize("kind", BOTH)
def test_an_upgrade_is_passed_on(kind: str, tmp_path: Path) -> None:
    """A WebSocket's first bytes: what the gateway would see, and bytes both ways after its answer."""
    asyncio.run(_upgraded(kind, tmp_path))


async def _upgraded(kind: str, folder: Path) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/ws" not in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            return
        heads.append(head.lower())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
        )
        writer.write(b"echo " + await reader.readexactly(5))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    there = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    opened = proxy(kind, folder, there)
    url = await asyncio.to_thread(opened.__enter__)
    try:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        ask = f"GET /ws HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        ask += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        writer.write(ask.encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 101"), head
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.readexactly(10), 10) == b"echo hello"
        writer.close()
        assert b"upgrade: websocket" in heads[0]
        assert b"connection: upgrade" in heads[0]
    finally:
        await asyncio.to_thread(opened.__exit__, None, None, None)
        server.close()
