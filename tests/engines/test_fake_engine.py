"""The fake engine does what its flags promise: every test that builds on it depends on that."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.engines.running import FAKE, Running, running

Start = Callable[..., Running]
CHAT = "/v1/chat/completions"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def one(*flags: str, port: int = 0, ready_s: float = 20.0, **env: str) -> Running:
            engine = running([*FAKE, *flags], tmp_path, env=env, port=port, ready_s=ready_s)
            return stack.enter_context(engine)

        yield one


def until(fact: Callable[[], bool], within_s: float = 60.0) -> None:
    give_up = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < give_up, "it did not come true in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_answers_and_counts(start: Start) -> None:
    engine = start("--alias", "alpha")
    ask = engine.client.post
    assert ask(CHAT, json={}).json()["choices"][0]["message"]["content"] == " hello from alpha."
    assert (
        ask("/v1/completions", json={"max_tokens": 2}).json()["choices"][0]["text"] == " hello from"
    )
    assert len(ask("/v1/embeddings", json={}).json()["data"][0]["embedding"]) == 3
    assert engine.client.get("/v1/models").json()["data"][0]["id"] == "alpha"
    assert engine.client.get("/last").json()["path"] == "/v1/embeddings"
    counts = engine.stats()
    assert (counts["requests"], counts["active"], counts["cancelled"]) == (3, 0, 0)


def test_counts_what_was_uploaded_and_echoes_a_websocket(start: Start) -> None:
    engine = start()
    upload = {"file": ("a", b"\xff" * 70_000)}
    answer = engine.client.post("/v1/audio/transcriptions", files=upload)
    assert answer.json() == {"text": "70000 bytes"}
    offer = "GET /any HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    with socket.create_connection(("127.0.0.1", engine.port), timeout=60) as sock:
        sock.sendall(offer.encode() + b"first")
        file = sock.makefile("rb")
        head = b"".join(iter(file.readline, b"\r\n"))
        assert b" 101 " in head
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head  # RFC 6455 1.3, its own example
        assert file.read(5) == b"first"
        sock.sendall(b"more")
        assert file.read(4) == b"more"


def test_streams_tokens_usage_and_done(start: Start) -> None:
    engine = start("--tokens", "3")
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    text = engine.client.post(CHAT, content=iter([httpx.Response(200, json=asked).content])).text
    events = [line for line in text.split("\n\n") if line]
    assert events[-1] == "data: [DONE]"
    assert '"completion_tokens": 3' in events[-2]
    assert [" t1" in events[0], " t3" in events[2]] == [True, True]


def test_a_cancel_arrives(start: Start) -> None:
    engine = start("--tokens", "1000", "--token-interval-s", "0.01")
    with engine.client.stream("POST", CHAT, json={"stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert engine.stats()["active"] == 1
    until(lambda: engine.stats()["cancelled"] == 1)
    assert engine.stats()["active"] == 0


def test_loads_then_serves(start: Start) -> None:
    engine = start("--late-listen", "0.2", "--load-s", "0.8", ready_s=0)
    with pytest.raises(httpx.ConnectError):
        engine.client.get("/health")
    until(lambda: listening(engine.port))
    assert engine.client.get("/health").status_code == 503
    assert engine.client.post(CHAT, json={}).status_code == 503
    until(lambda: engine.client.get("/health").status_code == 200)


def test_says_that_it_listens_before_it_does(start: Start) -> None:
    engine = start("--say-early", "--late-listen", "0.3", ready_s=0)
    until(lambda: "listening on" in engine.log.read_text())
    assert not listening(engine.port)
    until(lambda: listening(engine.port))
    assert engine.log.read_text().count("listening on") == 1


def listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_hangs_with_good_health_until_told_otherwise(start: Start) -> None:
    engine = start("--hang-after", "1")
    assert engine.client.post(CHAT, json={}).status_code == 200
    with pytest.raises(httpx.ReadTimeout):
        engine.client.post(CHAT, json={}, timeout=0.2)
    assert engine.client.get("/health").status_code == 200
    engine.client.post("/set", json={"hang_after": -1, "health_status": 500})
    assert engine.client.post(CHAT, json={}).status_code == 200
    assert engine.client.get("/health").status_code == 500


def test_wants_the_key_and_fails_as_told(start: Start) -> None:
    engine = start("--api-key-env", "KEY", "--error-status", "429", KEY="s3cret")
    assert engine.client.post(CHAT, json={}).status_code == 401
    headers = {"Authorization": "Bearer s3cret"}
    assert engine.client.post(CHAT, json={}, headers=headers).status_code == 429


def test_cuts_a_stream(start: Start) -> None:
    engine = start("--cut-after", "1")
    with pytest.raises(httpx.TransportError):
        engine.client.post(CHAT, json={"stream": True})


@pytest.mark.parametrize(
    ("flags", "code"), [(["--exit-at-once", "3"], 3), (["--exit-at-once=-4"], -4)]
)
def test_exits_at_once_with_last_words(start: Start, flags: list[str], code: int) -> None:
    engine = start(*flags, "--last-words", "CUDA out of memory", ready_s=0)
    assert engine.process.wait(60) == code
    assert engine.log.read_text().splitlines()[-1] == "CUDA out of memory"


def test_dies_after_answers_or_seconds(start: Start) -> None:
    engine = start("--die-after", "1", "--exit-code", "7")
    assert engine.client.post(CHAT, json={}).status_code == 200
    assert engine.process.wait(60) == 7
    assert (
        start("--die-after-s", "0.1", "--exit-code=-9", ready_s=0).process.wait(60)
        == -signal.SIGKILL
    )


def test_term_ends_it_unless_ignored(start: Start) -> None:
    polite, slow, deaf = start(), start("--term-delay-s", "0.3"), start("--ignore-term")
    for engine in (polite, slow, deaf):
        engine.process.send_signal(signal.SIGTERM)
    assert polite.process.wait(60) == 0
    assert slow.process.poll() is None
    assert slow.process.wait(60) == 0
    assert deaf.client.get("/health").status_code == 200


def test_the_child_shares_the_session_and_outlives_the_parent(start: Start) -> None:
    engine = start("--fork")
    child = engine.stats()["child"]
    assert os.getsid(child) == engine.process.pid
    engine.process.kill()
    engine.process.wait()
    assert alive(child)
    os.killpg(engine.process.pid, signal.SIGTERM)
    until(lambda: not alive(child))


@pytest.mark.parametrize(("env", "kept"), [({}, False), ({"SPT_NOENV": "1"}, True)])
def test_retitles_over_the_markers(start: Start, env: dict[str, str], kept: bool) -> None:
    engine = start("--retitle", "VLLM::EngineCore", MARKER="here", **env)
    proc = Path(f"/proc/{engine.process.pid}")
    assert proc.joinpath("cmdline").read_bytes().rstrip(b"\0") == b"VLLM::EngineCore"
    assert proc.joinpath("comm").read_text() == "VLLM::EngineCor\n"
    assert (b"MARKER=here" in proc.joinpath("environ").read_bytes()) is kept


def test_two_on_one_port_only_when_both_ask(start: Start) -> None:
    first = start()
    second = start("--reuse-port", port=first.port, ready_s=0)
    assert second.process.wait(60) == 1
    assert "cannot bind" in second.log.read_text()
    shared = start("--reuse-port")
    assert start("--reuse-port", port=shared.port).process.poll() is None


def test_floods_its_log_while_it_serves(start: Start) -> None:
    engine = start("--log-flood", "300000")
    until(lambda: engine.log.stat().st_size >= 300000)
