"""One question over HTTP: what comes back, and one clear error for each way in which nothing does."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from llmgw import config
from llmgw.cli import ask
from llmgw.errors import LlmgwError, UnauthorisedError, UnreachableError, UsageError

Serve = Callable[[bytes], ask.Peer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(answer)` gives a peer that says just that, once; what it was sent is in `requests`."""
    sockets: list[socket.socket] = []

    def start(answer: bytes) -> ask.Peer:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)

        def once() -> None:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed, and nobody had asked
                return
            with connection:
                requests.append(connection.recv(1 << 16))
                connection.sendall(answer)

        threading.Thread(target=once, daemon=True).start()
        return ask.Peer("control", f"http://127.0.0.1:{listener.getsockname()[1]}/x/", "t0k", "try")

    requests.clear()
    yield start
    for listener in sockets:
        listener.close()


requests: list[bytes] = []


def reply(status: str, body: bytes, length: int | None = None) -> bytes:
    count = len(body) if length is None else length
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), count, body)


def test_an_answer_and_what_was_asked(serve: Serve) -> None:
    peer = serve(reply("200 OK", b'{"a": 1}'))
    assert ask.post(peer, "/api", {"b": 2}) == {"a": 1}
    head, _, body = requests[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /x/api HTTP/1.0"
    assert {f"Host: {peer.place}", "Authorization: Bearer t0k", "Content-Length: 8"} <= set(lines)
    assert "Content-Type: application/json" in lines
    assert body == b'{"b": 2}'


@pytest.mark.parametrize(
    ("answer", "kind", "code", "said"),
    [
        (
            reply("401 No", b'{"error": {"message": "wrong", "hint": "set it"}}'),
            UnauthorisedError,
            4,
            "wrong",
        ),
        (reply("401 No", b"{}"), UnauthorisedError, 4, "control at 127.0.0.1:.* answered 401"),
        (
            reply("404 No", b'{"error": {"message": "none", "code": "not_found"}}'),
            LlmgwError,
            1,
            "none",
        ),
        (reply("503 Not now", b'{"error": {"message": "leaves"}}'), LlmgwError, 3, "leaves"),
        (reply("200 OK", b"<html>"), UnreachableError, 3, "is not control: b'<html>' is not JSON"),
        (reply("200 OK", b"{}", 9), UnreachableError, 3, "it broke off after 2 of 9 bytes"),
        (b"SSH-2.0-x\r\n", UnreachableError, 3, "it speaks no HTTP: 'SSH-2.0-x'"),
        (b"", UnreachableError, 3, "it speaks no HTTP: ''"),
    ],
)
def test_answers_that_are_errors(
    serve: Serve, answer: bytes, kind: type[LlmgwError], code: int, said: str
) -> None:
    with pytest.raises(kind, match=said) as refused:
        ask.get(serve(answer), "/api")
    assert refused.value.exit_code == code
    assert type(refused.value) is kind


def test_nobody_and_somebody_who_says_nothing(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = ask.Peer("agent", f"http://127.0.0.1:{silent.getsockname()[1]}", "", "try")
        with pytest.raises(UnreachableError, match=r"no agent at .*: no answer within 0.05 s"):
            ask.get(peer, "/", timeout_s=0.05)
    with pytest.raises(UnreachableError, match=r"no agent at .*: connection refused") as refused:
        ask.get(peer, "/")
    assert refused.value.hint == "try"
    good = serve(reply("200 OK", b"{}"))
    assert ask.first((peer, good)) is good
    assert ask.first((peer,)) is peer


@pytest.mark.parametrize(
    "url",
    [
        "box1:8801",
        "https://",
        "ftp://box1:8801",
        "http://",
        "http://box1:x",
        "http://box1:99999",
        "",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="is not the address of control"):
        ask.get(ask.Peer("control", url, "", ""), "/")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:8801", ("127.0.0.1", 8801, "")),
        ("http://[::1]:8801/", ("::1", 8801, "")),
        ("http://[::1]", ("::1", 80, "")),
        ("http://box1/llm/", ("box1", 80, "/llm")),
        ("https://box1:8801", ("box1", 8801, "")),
        ("https://box1", ("box1", 443, "")),
    ],
)
def test_addresses(url: str, place: tuple[str, int, str]) -> None:
    assert ask.address(ask.Peer("control", url, "", "")) == place


def test_who_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_TOKEN", "operator")
    given = config.Given({}, {"LLMGW_CONTROL": "http://a:1,http://b:1"})
    assert [(p.url, p.token) for p in ask.control(given)] == [
        ("http://a:1", "operator"),
        ("http://b:1", "operator"),
    ]
    assert ask.agent("http://c:1").token == "operator"
    monkeypatch.setenv("LLMGW_NODE_TOKEN", "node")
    assert ask.agent("http://c:1").token == "node"


def test_what_was_sent_to_one_that_hangs_may_still_be_done(serve: Serve) -> None:
    """A stopped control has the request in its socket and carries it out when it wakes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = ask.Peer("control", f"http://127.0.0.1:{silent.getsockname()[1]}", "", "try")
        for call in (ask.post, ask.put):
            with pytest.raises(UnreachableError, match="may still be done") as unheard:
                call(peer, "/", {}, timeout_s=0.05)
            assert unheard.value.message == (
                f"control at {peer.place} does not answer (no answer within 0.05 s); "
                "what was asked may still be done"
            )
            assert (unheard.value.hint, unheard.value.exit_code) == ("`llmgw status` shows it", 3)
        with pytest.raises(UnreachableError, match="no control at"):
            ask.post(peer, "/", {}, timeout_s=0.05, only_looks=True)
    with pytest.raises(UnreachableError, match=r"no control at .*: connection refused"):
        ask.post(peer, "/", {})  # that was never sent
    for answer in (b"", reply("200 OK", b"{}", 9)):
        with pytest.raises(UnreachableError, match="may still be done"):
            ask.post(serve(answer), "/")
