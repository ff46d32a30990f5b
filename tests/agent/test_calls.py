"""The agent's own calls to a control: connections kept, every shape of an answer, and what is no answer at all."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from llmgw import tls
from llmgw.agent.calls import Answer, Calls, NoAnswerError
from llmgw.agent.knock import knock, trouble
from llmgw.agent.link import is_url
from llmgw.config import Trust
from scripts.ports import free_port

HEAD = b"HTTP/1.1 200 OK\r\n"


class Control:
    """Says the same bytes to every question, and remembers what it was asked; `ends` after each answer if told so."""

    def __init__(self, said: bytes, *, ends: bool = False, mute: bool = False) -> None:
        self.said, self.ends, self.mute = said, ends, mute
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def over(self, server: asyncio.Server) -> None:
        server.close()
        for writer in self.writers:
            writer.transport.abort()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # each end of a connection takes a turn

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        mine = asyncio.current_task()
        assert mine is not None
        self.tasks.append(mine)
        self.writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = next((x for x in head.split("\r\n") if x.startswith("content-length")), ":0")
                self.bodies.append(await reader.readexactly(int(size.partition(":")[2])))
                self.heads.append(head)
                if not self.mute:
                    writer.write(self.said)
                if self.ends:
                    break
        except (EOFError, ConnectionError):
            pass
        writer.close()


def story(
    said: bytes,
    then: Callable[[Calls, Control], Awaitable[None]],
    *,
    ends: bool = False,
    mute: bool = False,
    token: str = "t",
    path: str = "",
) -> None:
    async def run() -> None:
        control, port = Control(said, ends=ends, mute=mute), free_port()
        server = await asyncio.start_server(control.serve, "127.0.0.1", port)
        calls = Calls(f"http://127.0.0.1:{port}{path}", Trust(), token=token, node="box1")
        try:
            await then(calls, control)
        finally:
            calls.close()
            await control.over(server)

    asyncio.run(run())


def test_one_connection_does_for_many_calls_and_two_at_once_take_two() -> None:
    async def then(calls: Calls, control: Control) -> None:
        for _ in range(3):
            assert await calls.call("POST", "/a?b=1", b"{}", 5) == Answer(200, b"[1]")
        assert control.connections == 1
        assert control.bodies == [b"{}"] * 3
        first = control.heads[0].lower()
        assert first.startswith("post /up/a?b=1 http/1.1\r\nhost: 127.0.0.1:")
        assert "authorization: bearer t\r\n" in first
        assert "x-llmgw-node: box1\r\n" in first
        calls.shown = ""
        both = (calls.call("GET", "/a", b"", 5), calls.call("GET", "/b", b"", 5))
        assert [x.ok for x in await asyncio.gather(*both)] == [True, True]
        assert control.connections == 2
        assert "authorization" not in control.heads[-1].lower()
        assert "content-" not in control.heads[-1].lower()

    story(HEAD + b"content-length: 3\r\n\r\n[1]", then, path="/up/")


@pytest.mark.parametrize(
    ("said", "ends", "body"),
    [
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n", False, b"[1]"),
        (HEAD + b"\r\n[1]", True, b"[1]"),
        (b"HTTP/1.0 200 OK\r\n\r\n[1]", True, b"[1]"),
        (HEAD + b"connection: close\r\ncontent-length: 3\r\n\r\n[1]", True, b"[1]"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, b""),
    ],
)
def test_whatever_way_its_end_is_told_the_answer_is_whole(
    said: bytes, ends: bool, body: bytes
) -> None:
    """There may be a reverse proxy in between."""

    async def then(calls: Calls, control: Control) -> None:
        for _ in range(2):
            assert (await calls.call("GET", "/", b"", 5)).content == body
        assert control.connections == 1 + ends

    story(said, then, ends=ends)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "it closed the connection without an answer"),
        (HEAD + b"content-length: 9\r\n\r\n[1]", "it closed the connection without an answer"),
        (HEAD, "it closed the connection without an answer"),
        (b"SSH-2.0-x\r\n\r\n", "not HTTP: b'SSH-2.0-x\\r\\n\\r\\n'"),
    ],
)
def test_half_an_answer_is_none(said: bytes, why: str) -> None:
    async def then(calls: Calls, _control: Control) -> None:
        with pytest.raises(NoAnswerError) as e:
            await calls.call("GET", "/", b"", 5)
        assert str(e.value) == why

    story(said, then, ends=True)


def test_nothing_is_waited_for_without_end_and_a_late_answer_is_nobodys() -> None:
    async def then(calls: Calls, control: Control) -> None:
        with pytest.raises(NoAnswerError, match=r"no answer in 0\.05 s"):
            await calls.call("GET", "/slow", b"", 0.05)
        control.mute = False
        assert (await calls.call("GET", "/", b"", 5)).ok
        assert control.connections == 2

    story(HEAD + b"content-length: 0\r\n\r\n", then, mute=True)


def test_a_connection_that_was_closed_meanwhile_is_not_used_again() -> None:
    async def then(calls: Calls, control: Control) -> None:
        await calls.call("GET", "/", b"", 5)
        control.writers[0].close()
        await asyncio.sleep(0.05)
        assert (await calls.call("GET", "/", b"", 5)).ok
        control.writers[1].write(b"and another thing")
        await asyncio.sleep(0.05)
        assert (await calls.call("GET", "/", b"", 5)).ok
        assert control.connections == 3

    story(HEAD + b"content-length: 0\r\n\r\n", then)


def test_nobody_there_is_said_in_the_systems_words() -> None:
    async def run() -> None:
        url = f"http://127.0.0.1:{free_port()}"
        calls = Calls(url, Trust(), token="", node="")
        with pytest.raises(ConnectionRefusedError) as e:
            await calls.call("GET", "/", b"", 5)
        assert e.value.strerror == "Connection refused"
        assert await trouble(url, e.value) == ("", "")

    asyncio.run(run())


def test_tls_is_spoken_by_pin_and_who_wrote_http_for_it_is_told(tmp_path: Path) -> None:
    pair = tls.own(tmp_path, ["127.0.0.1"])

    async def run() -> None:
        control, port = Control(HEAD + b"content-length: 0\r\n\r\n"), free_port()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        server = await asyncio.start_server(control.serve, "127.0.0.1", port, ssl=context)
        good = Calls(
            f"https://127.0.0.1:{port}", Trust((tls.pin_of(pair.cert),)), token="t", node=""
        )
        assert (await good.call("GET", "/", b"", 5)).ok
        assert not good.in_clear
        good.close()
        other = Calls(
            f"https://127.0.0.1:{port}", Trust((f"sha256:{'0' * 64}",)), token="t", node=""
        )
        with pytest.raises(ssl.SSLError) as no:
            await other.call("GET", "/", b"", 5)
        assert "its certificate is" in (await trouble(f"https://127.0.0.1:{port}", no.value))[0]
        assert len(control.heads) == 1, "the wrong one was told nothing"
        plain = Calls(f"http://127.0.0.1:{port}", Trust(), token="t", node="")
        with pytest.raises(NoAnswerError) as e:
            await plain.call("GET", "/", b"", 5)
        why, _ = await trouble(f"http://127.0.0.1:{port}", e.value)
        assert why == f"it speaks TLS: use https://127.0.0.1:{port}"
        await control.over(server)

    asyncio.run(run())


def test_in_clear_it_is_first_asked_without_the_token() -> None:
    async def then(calls: Calls, control: Control) -> None:
        await knock(calls, 5)
        assert control.heads == [], "this box hears itself alone"
        calls._host = "box9"  # another box, as far as it knows
        assert calls.in_clear
        calls._host = "127.0.0.1"
        await calls.call("GET", "/healthz", b"", 5, shy=True)
        assert "authorization" not in control.heads[0].lower()

    story(HEAD + b"content-length: 0\r\n\r\n", then)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("http://box1:8801", True),
        ("https://[::1]:8801/up", True),
        ("http://höst", True),
        ("http://box1:99999", False),
        ("http://box1:0", False),
        ("http://", False),
        ("ftp://box1", False),
        ("http://bo x1", False),
        ("http://" + "x" * 64, False),
        ("box1:8801", False),
    ],
)
def test_what_is_a_url_of_a_control(text: str, fine: bool) -> None:
    assert is_url(text) is fine
