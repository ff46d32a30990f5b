"""Answers of engines: where they end, and that nothing behind the end gets through."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.gateway.http1 import HEAD_BYTES, chunk
from llmgw.gateway.reply import BadReplyError, ReplyReader

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES = (b"data: 1\n\n", b"data: " + b"x" * 300 + b"\n\n", b"data: [DONE]\n\n")
FRAMED = b"".join(chunk(p) for p in PIECES) + b"0\r\n\r\n"


def read(*parts: bytes, plain: bool = False) -> tuple[ReplyReader, bytes]:
    reader = ReplyReader(plain=plain)
    return reader, b"".join(reader.feed(part) for part in parts)


@pytest.mark.parametrize(
    ("data", "raw", "plain"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", b"hello"),
        (CHUNKED + FRAMED, FRAMED, b"".join(PIECES)),
        (
            CHUNKED + b"5;ext=1\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
            b"5;ext=1\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
            b"hello",
        ),
        (OK + b"Content-Length: 0\r\n\r\n", b"", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"", b""),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
            + OK
            + b"Content-Length: 2\r\n\r\nhi",
            b"hi",
            b"hi",
        ),
    ],
    ids=["length", "chunked", "extension and trailer", "empty", "204", "304", "1xx first"],
)
@given(cuts=st.lists(st.integers(0, 600), max_size=8))
def test_any_split_reads_the_same(data: bytes, raw: bytes, plain: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(min(c, len(data)) for c in cuts)})
    parts = [data[a:b] for a, b in pairwise(edges)]
    for want, bare in ((raw, False), (plain, True)):
        reader, got = read(*parts, plain=bare)
        assert got == want
        assert reader.done
        assert reader.reusable
        assert not reader.ends_at_eof


def test_headers_that_go_on() -> None:
    head = (
        b"Server: uvicorn\r\nContent-Type: Application/JSON\r\nContent-Length: 2\r\nConnection: keep-alive\r\n"
        b"X-Request-Id: theirs\r\nAccess-Control-Allow-Origin: *\r\nKeep-Alive: timeout=5\r\n\r\n"
    )
    reader, _ = read(OK + head + b"{}")
    passed_on = b"Server: uvicorn\r\nContent-Type: Application/JSON\r\n"
    assert reader.lines == b"HTTP/1.1 200 OK\r\n" + passed_on
    assert reader.content_type == b"application/json"
    assert reader.length == 2


def test_headers_that_connection_names_are_for_this_hop() -> None:
    """RFC 9110 7.6.1."""
    reader = ReplyReader()
    head = b"HTTP/1.1 200 OK\r\nX-Hop: 1\r\nConnection: keep-alive, X-Hop\r\nx-stays: 2\r\ncontent-length: 0\r\n\r\n"
    reader.feed(head)
    assert reader.lines == b"HTTP/1.1 200 OK\r\nx-stays: 2\r\n"


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    reader, got = read(OK + b"\r\nhel", b"lo")
    assert got == b"hello"
    assert not reader.done
    assert reader.ends_at_eof


def test_a_connection_that_will_close_is_not_reused() -> None:
    reader, _ = read(OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi")
    assert reader.done
    assert not reader.reusable
    old, _ = read(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi")
    assert not old.reusable


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 2\r\n\r\nhi" + OK + b"Content-Length: 0\r\n\r\n",
        OK + b"Content-Length: 2\r\n\r\nhixx",
        OK + b"Content-Length: 2\r\n\r\nhi\r\n",
        OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nhixx",
        CHUNKED + FRAMED + OK + b"\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\nxx",
    ],
    ids=["second answer", "garbage", "line end", "after close", "after chunks", "after 204"],
)
def test_more_than_an_answer_never_gets_through(data: bytes, plain: bool) -> None:
    with pytest.raises(BadReplyError, match="sent more than its answer"):
        read(data, plain=plain)


def test_line_ends_after_the_last_chunk_end_the_clients_connection() -> None:
    assert read(CHUNKED + FRAMED)[0].tidy
    assert not read(CHUNKED + FRAMED + b"\r\n")[0].tidy


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "sent no proper HTTP"),
        (OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "sent no proper HTTP"),
        (CHUNKED + b"zz\r\n", "sent no proper HTTP"),
        (OK.replace(b"\r\n", b"\n") + b"Content-Length: 0\r\n\r\n", "sent no proper HTTP"),
        (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", "sent no proper HTTP"),
        (b"HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n", "answered with status 0"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", "switched to another protocol"),
        (OK + b"X: " + b"a" * HEAD_BYTES, "headers larger than"),
        (OK + b"X: " + b"a" * HEAD_BYTES + b"\r\n\r\n", "headers larger than"),
    ],
)
def test_what_is_no_answer(data: bytes, why: str) -> None:
    with pytest.raises(BadReplyError, match=why):
        read(data)


@pytest.mark.parametrize(
    ("sent", "may"),
    [
        (b"", True),
        (chunk(b"data: 1\n\n"), True),
        (b"9\r\ndata: 1\n\n", False),
        (b"9\r\ndata: 1\n\n\r", False),
        (b"9\r\ndat", False),
        (b"9\r", False),
        (b"0\r\n", False),
    ],
)
def test_whether_a_broken_stream_takes_another_chunk(sent: bytes, may: bool) -> None:
    """Only between chunks: inside one, our bytes would be read as the engine's."""
    reader, got = read(CHUNKED + sent)
    assert got == sent
    assert reader.at_boundary() is may


def test_only_a_chunked_answer_takes_another_chunk() -> None:
    assert not read(OK + b"Content-Length: 5\r\n\r\nhe")[0].at_boundary()
    assert not read(CHUNKED + FRAMED)[0].at_boundary()
