"""TLS between the parts: who is at the other end is proved before anything is asked, or the token shown (http.md)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import uvloop

from llmgw import config, tls
from llmgw.cli import ask, stream
from llmgw.config import Trust
from llmgw.errors import LlmgwError, UnreachableError, UsageError

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{"ok":true}'
OTHER = f"sha256:{'0' * 64}"


class Server:
    """One that writes down whatever it is told, before and after a handshake."""

    def __init__(self, pair: tls.Pair | None, host: str = "127.0.0.1") -> None:
        self.heard: list[bytes] = []
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        self._context = None
        if pair is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(*pair)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def url(self, scheme: str = "https", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}"

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            try:
                with sock, self._spoken(sock) as spoken:
                    spoken.settimeout(60)
                    if said := spoken.recv(1 << 16):
                        self.heard.append(said)
                        spoken.sendall(ANSWER)
            except OSError:
                continue

    def _spoken(self, sock: socket.socket) -> socket.socket:
        return sock if self._context is None else self._context.wrap_socket(sock, server_side=True)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tls.Pair:
    return tls.own(tmp_path_factory.mktemp("tls"), ["box1", "10.0.0.10"])


@pytest.fixture
def server(pair: tls.Pair) -> Iterator[Server]:
    made = Server(pair)
    yield made
    made.close()


@pytest.fixture
def plain() -> Iterator[Server]:
    made = Server(None)
    yield made
    made.close()


def by_ask(url: str, trust: Trust) -> None:
    assert ask.get(ask.Peer("control", url, "s3cret", "start it", trust), "/x") == {"ok": True}


def by_stream(url: str, trust: Trust) -> None:
    peer = ask.Peer("control", url, "s3cret", "start it", trust)
    assert list(stream.lines(peer, "/x")) == ['{"ok":true}']


def by_httpx(url: str, trust: Trust) -> None:
    headers = {"authorization": "Bearer s3cret"}
    with httpx.Client(verify=tls.verify(url, trust), trust_env=False) as client:
        assert client.get(url, headers=headers).json() == {"ok": True}


async def _httpx(url: str, trust: Trust) -> None:
    headers = {"authorization": "Bearer s3cret"}
    async with httpx.AsyncClient(verify=tls.verify(url, trust), trust_env=False) as client:
        assert (await client.get(url, headers=headers)).json() == {"ok": True}


async def _streams(url: str, trust: Trust) -> None:
    host, port = url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls.client(trust))
    writer.write(b"Bearer s3cret")
    assert await reader.read() == ANSWER
    writer.close()


def looped(
    call: Callable[..., object], factory: Callable[[], asyncio.AbstractEventLoop]
) -> Callable[[str, Trust], None]:
    def run(url: str, trust: Trust) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(call(url, trust))  # type: ignore[arg-type]

    return run


WAYS = {
    "command line": by_ask,
    "followed": by_stream,
    "httpx": by_httpx,
    "httpx on asyncio": looped(_httpx, asyncio.new_event_loop),
    "httpx on uvloop": looped(_httpx, uvloop.new_event_loop),
    "streams on asyncio": looped(_streams, asyncio.new_event_loop),
    "streams on uvloop": looped(_streams, uvloop.new_event_loop),
}


@pytest.mark.parametrize("way", WAYS)
def test_with_another_certificate_nothing_is_sent_least_of_all_the_token(
    server: Server, pair: tls.Pair, way: str
) -> None:
    mine = tls.pin_of(pair.cert)
    with pytest.raises((UnreachableError, httpx.ConnectError, tls.PinError)) as refused:
        WAYS[way](server.url(), Trust((OTHER,)))
    assert f"its certificate is {mine}, pinned is {OTHER}" in str(refused.value)
    with pytest.raises((UnreachableError, httpx.ConnectError, ssl.SSLCertVerificationError)):
        WAYS[way](server.url(), Trust())  # nothing pinned is not anything goes
    WAYS[way](server.url(), Trust((OTHER, mine)))  # while it is renewed both are
    assert len(server.heard) == 1, "the two before it sent nothing"
    assert b"s3cret" in server.heard[0]


def test_what_is_wrong_is_said_with_what_to_try(server: Server, plain: Server) -> None:
    def refused(url: str, trust: Trust = Trust()) -> UnreachableError:  # noqa: B008 - immutable
        with pytest.raises(UnreachableError) as followed:
            by_stream(url, trust)
        with pytest.raises(UnreachableError) as asked:
            by_ask(url, trust)
        assert (followed.value.message, followed.value.hint) == (
            asked.value.message,
            asked.value.hint,
        )
        return asked.value

    found = refused(server.url(), Trust((OTHER,)))
    assert "`llmgw token` on its box prints the new one" in found.hint
    found = refused(server.url())
    assert "its certificate is not trusted: self-signed certificate" in found.message
    assert "`llmgw token` on control's box" in found.hint
    assert found.code == "tls"
    found = refused(plain.url(), Trust((OTHER,)))
    assert "it speaks no TLS" in found.message
    assert "use http://" in found.hint
    found = refused(server.url("http"))
    assert f"it speaks TLS: use https://127.0.0.1:{server.port}" in found.message
    assert f"on its own box `LLMGW_CONTROL=https://127.0.0.1:{server.port}` will do" in found.hint
    assert "elsewhere `llmgw token` there prints the URL and the --pin" in found.hint


def test_an_authority_of_ones_own_vouches_for_names(server: Server, pair: tls.Pair) -> None:
    by_ask(server.url(host="localhost"), Trust(ca=str(pair.cert)))
    by_ask(server.url(host="127.0.0.1"), Trust(ca=str(pair.cert)))
    unnamed = Server(pair, "127.0.0.2")
    try:
        with pytest.raises(UnreachableError, match=r"not trusted: .*127\.0\.0\.2"):
            by_ask(unnamed.url(host="127.0.0.2"), Trust(ca=str(pair.cert)))
    finally:
        unnamed.close()
    with pytest.raises(UsageError, match="--ca /nowhere cannot be used"):
        by_ask(server.url(), Trust(ca="/nowhere"))


def test_the_pin_is_the_hash_of_the_certificate_and_stays(tmp_path: Path) -> None:
    pair = tls.own(tmp_path / "new", ["box1"])
    der = ssl.PEM_cert_to_DER_cert(pair.cert.read_text())
    assert tls.pin_of(pair.cert) == f"sha256:{hashlib.sha256(der).hexdigest()}"
    assert [oct(p.stat().st_mode & 0o777) for p in pair] == ["0o600"] * 2
    assert tls.own(tmp_path / "new", ["box2"]) == pair
    assert ssl.PEM_cert_to_DER_cert(pair.cert.read_text()) == der
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["tls.crt", "tls.key"]


def test_killed_before_the_certificate_was_there_it_is_made_of_the_key_that_is(
    tmp_path: Path,
) -> None:
    pair = tls.own(tmp_path, [])
    key = pair.key.read_bytes()
    pair.cert.unlink()
    (tmp_path / f".{tls.KEY}.77.abc").write_bytes(b"half")  # what a kill leaves aside
    tls.own(tmp_path, [])
    assert pair.key.read_bytes() == key


def test_of_many_that_begin_at_once_all_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: tls.pin_of(tls.own(tmp_path, []).cert), range(8)))
    assert len(set(found)) == 1


def test_files_that_do_not_fit_are_named(tmp_path: Path, pair: tls.Pair) -> None:
    other = tls.own(tmp_path / "a", [])
    with pytest.raises(UsageError, match="cannot be used: KEY_VALUES_MISMATCH"):
        tls.given(str(pair.cert), str(other.key))
    with pytest.raises(UsageError, match="--tls-cert is given without the other one"):
        tls.given(str(pair.cert), "")
    other.cert.unlink()
    other.key.write_bytes(b"nothing")
    with pytest.raises(LlmgwError, match="no certificate can be made"):
        tls.own(tmp_path / "a", [])


def test_pins_as_they_are_given() -> None:
    pin = f"sha256:{'ab' * 32}"
    assert config.pinned(f"https://a:1#{pin}") == ("https://a:1", Trust((pin,)))
    assert config.pinned("https://a:1", Trust((OTHER,))) == ("https://a:1", Trust((OTHER,)))
    given = config.Given({}, {"LLMGW_PIN": f"{pin.upper()},{OTHER}", "LLMGW_CA": "ca.pem"})
    assert config.trust(given, "https://a:1", "http://127.0.0.1:1") == Trust((pin, OTHER), "ca.pem")
    with pytest.raises(UsageError, match="plain HTTP, and a certificate is pinned"):
        config.trust(given, "http://10.0.0.1:8801")
    with pytest.raises(UsageError, match="plain HTTP, and a certificate is pinned"):
        config.pinned(f"http://10.0.0.1:8801#{pin}")
    for wrong in ("sha256:00", "ab" * 32, f"sha1:{'ab' * 32}", f"sha256:{'xy' * 32}"):
        with pytest.raises(UsageError, match="is no hash of a certificate"):
            config.checked_pin(wrong)


def test_what_was_joined_is_shown_to_nobody_else() -> None:
    join = config.Join(("https://a:1",), Trust((OTHER,)), "s3cret", "auto")
    assert join.of(["https://a:1"]) == join
    assert join.of(["https://b:1"]) == join.of(["https://a:1", "https://b:1"]) == config.Join()


def test_the_command_line_finds_the_control_of_its_box(
    server: Server, pair: tls.Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without LLMGW_CONTROL; and a pin it knows is used where that control is named without one."""
    monkeypatch.setenv("LLMGW_STATE_DIR", str(tmp_path))
    (tmp_path / "control").mkdir()
    url = f"{server.url()}#{tls.pin_of(pair.cert)}"
    (tmp_path / "control" / "url").write_text(f"{url}\nhttps://10.0.0.10:8801\n")
    for env in ({}, {"LLMGW_CONTROL": server.url()}):
        (peer,) = ask.control(config.Given({}, env))
        assert (peer.url, peer.trust.pins) == (server.url(), (tls.pin_of(pair.cert),))
        assert ask.get(peer, "/x") == {"ok": True}
    (peer,) = ask.control(config.Given({}, {"LLMGW_CONTROL": "https://10.0.0.9:8801"}))
    assert peer.trust == Trust()


def test_p10_without_https_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys, llmgw.cli.status, llmgw.cli.ask; "
        "assert not {'ssl', 'llmgw.tls', 'cryptography'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.getcwd()}  # noqa: PTH109 - as a word
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
