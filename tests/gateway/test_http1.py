"""Requests of clients: bytes in, values out. Any split of any messages gives the same, and no doubtful shape passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.gateway.http1 import HEAD_BYTES, Budget, Request, RequestReader, answer, chunk
from tests.gateway.kept import kept

HOST = b"Host: x\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST
BODY = b'{"model":"m"}'


def plain(body: bytes = BODY, more: bytes = b"") -> bytes:
    return POST + more + b"content-length: %d\r\n\r\n" % len(body) + body


def chunked(*pieces: bytes, trailer: bytes = b"") -> bytes:
    framed = b"".join(chunk(piece) for piece in pieces)
    return POST + b"transfer-encoding: chunked\r\n\r\n" + framed + b"0\r\n" + trailer + b"\r\n"


def read(*parts: bytes, body_limit: int = 1 << 20) -> RequestReader:
    reader = RequestReader(Budget(), body_limit)
    for part in parts:
        reader.feed(part)
    return reader


def facts(reader: RequestReader) -> list[tuple[bytes, bytes, bytes, bytes, bool, bool]]:
    def one(r: Request) -> tuple[bytes, bytes, bytes, bytes, bool, bool]:
        return r.method, r.target, b"".join(r.forward), r.body, r.keep_alive, r.http10

    return [one(r) for r in reader.ready]


def test_a_whole_request() -> None:
    reader = read(plain(more=b"Accept: */*\r\nAuthorization: Bearer k\r\nX-Request-Id: 7\r\n"))
    request = reader.ready[0]
    assert request.method == b"POST"
    assert request.path == b"/v1/chat/completions"
    assert request.body == BODY
    assert b"".join(request.forward) == b"Accept: */*\r\n"
    assert request.own[b"authorization"] == b"Bearer k"
    assert request.own[b"x-request-id"] == b"7"
    assert request.keep_alive
    assert not reader.partial


MESSAGES = st.sampled_from(
    [
        plain(),
        plain(b"", b"X-A: 1\r\nX-B:   padded  \r\n"),
        plain(b"x" * 5000),
        chunked(BODY),
        chunked(b"a" * 300, b"b", b"c" * 70, trailer=b"X-Trailer: 1\r\n"),
        b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n",
        b"\r\nHEAD /healthz?a=b HTTP/1.1\r\n" + HOST + b"X-Empty:\r\n\r\n",
        b"OPTIONS http://gateway:8800/v1/models HTTP/1.1\r\n" + HOST + b"\r\n",
        b"POST /v1/models HTTP/1.1\r\n"
        + HOST
        + b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Not: 2\r\n\r\n",
        POST
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\ncontent-length: 3\r\n\r\nabc",
    ]
)


@given(st.lists(MESSAGES, min_size=1, max_size=5), st.data())
def test_any_split_of_any_messages_reads_the_same(
    messages: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, split = read(stream), read(*parts)
    assert whole.error is None
    assert split.error is None
    assert facts(split) == facts(whole)
    assert len(whole.ready) == len(messages)
    assert not split.partial


def test_byte_by_byte() -> None:
    stream = plain() + chunked(b"abc", b"de") + b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    reader = read(*(bytes([c]) for c in stream))
    assert [r.body for r in reader.ready] == [BODY, b"abcde", b""]


SMUGGLING = kept("smuggling")


@pytest.mark.parametrize("shape", SMUGGLING)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_shapes_on_which_parsers_differ_are_refused(shape: str, step: int) -> None:
    data = SMUGGLING[shape] + b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
    reader = read(*(data[i : i + step] for i in range(0, len(data), step)))
    assert reader.error is not None
    assert reader.error.status in (400, 505)
    assert not reader.ready


def test_what_came_before_a_refused_request_is_kept() -> None:
    reader = read(plain() + SMUGGLING["two lengths"])
    assert len(reader.ready) == 1
    assert reader.error is not None


@pytest.mark.parametrize(
    "head",
    [
        POST + b"X: " + b"a" * HEAD_BYTES + b"\r\n\r\n",
        POST + b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(9000)) + b"\r\n",
        b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    ],
    ids=["one long header", "many headers", "long target"],
)
@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_headers_over_the_limit(head: bytes, step: int) -> None:
    reader = read(*(head[i : i + step] for i in range(0, len(head), step)))
    assert reader.error is not None
    assert reader.error.status == 431
    assert not reader.ready


def test_an_unfinished_header_is_not_collected_without_end() -> None:
    reader = read(POST + b"X: ")
    for _ in range(20):
        reader.feed(b"a" * 8192)
    assert reader.error is not None
    assert reader.error.status == 431


@pytest.mark.parametrize(
    "endless", [b"0\r\nX: ", b"0\r\n", b"3;x="], ids=["one trailer", "trailers", "an extension"]
)
def test_what_follows_a_body_is_not_collected_without_end(endless: bytes) -> None:
    reader = read(POST + b"transfer-encoding: chunked\r\n\r\n" + chunk(BODY) + endless)
    for _ in range(20):
        reader.feed(b"X: y\r\n" * 1000 if endless == b"0\r\n" else b"a" * 8192)
    assert reader.error is not None
    assert reader.error.status == 431


def test_headers_below_the_limit_pass_also_after_a_large_body() -> None:
    head = POST + b"X: " + b"a" * (HEAD_BYTES - 1000) + b"\r\ncontent-length: 200000\r\n\r\n"
    stream = (head + b"b" * 200_000) * 2
    for step in (4096, 100_000):
        reader = read(*(stream[i : i + step] for i in range(0, len(stream), step)))
        assert reader.error is None
        assert len(reader.ready) == 2


@pytest.mark.parametrize(
    "data", [plain(b"x" * 101), chunked(b"x" * 60, b"x" * 60)], ids=["length", "chunked"]
)
def test_a_body_over_the_limit(data: bytes) -> None:
    reader = read(data, body_limit=100)
    assert reader.error is not None
    assert reader.error.status == 413


def test_a_length_over_the_limit_is_refused_before_the_body() -> None:
    reader = read(POST + b"content-length: 101\r\n\r\n", body_limit=100)
    assert reader.error is not None
    assert reader.error.status == 413


def test_all_bodies_together_have_a_limit() -> None:
    budget = Budget(100)
    first, second = RequestReader(budget), RequestReader(budget)
    first.feed(plain(b"x" * 80))
    second.feed(plain(b"x" * 30))
    assert second.error is not None
    assert second.error.status == 503
    assert budget.used == 80
    second.close()
    first.close()
    assert budget.used == 0


def test_a_half_read_body_is_given_back() -> None:
    budget = Budget(100)
    reader = RequestReader(budget)
    reader.feed(plain(b"x" * 80)[:-20])
    assert budget.used == 60
    reader.close()
    assert budget.used == 0


def test_an_upgrade_is_declined_and_its_body_still_read() -> None:
    """JDK's HTTP client offers h2c with each POST; llhttp alone would take the body for the other protocol."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    reader = read(plain(more=offer + b"X-A: 1\r\n") + plain())
    assert reader.error is None
    assert [r.body for r in reader.ready] == [BODY, BODY]
    assert b"".join(reader.ready[0].forward) == b"X-A: 1\r\n"
    assert reader.ready[0].keep_alive
    both = read(POST + offer + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n")
    assert [r.body for r in both.ready] == [BODY]


def test_many_pipelined_upgrades_do_not_pile_up() -> None:
    one = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    reader = read(one * 3000)
    assert reader.error is None
    assert len(reader.ready) == 3000


def test_connect_is_not_served() -> None:
    reader = read(b"CONNECT engine:80 HTTP/1.1\r\n" + HOST + b"\r\nabc")
    assert reader.error is not None
    assert reader.error.status == 405
    assert not reader.ready


def test_continue_is_wanted_once_and_only_before_the_body() -> None:
    expect = b"Expect: 100-Continue\r\n"
    head = plain(more=expect)[: -len(BODY)]
    reader = read(head)
    assert reader.continue_wanted
    assert not read(head + BODY).continue_wanted
    assert not read(head.replace(b"HTTP/1.1", b"HTTP/1.0")).continue_wanted
    other = read(plain(more=b"Expect: miracles\r\n"))
    assert other.error is not None
    assert other.error.status == 417


def test_nothing_after_a_last_request_is_read() -> None:
    reader = read(plain(more=b"Connection: close\r\n") + plain())
    assert [r.keep_alive for r in reader.ready] == [False]
    assert reader.error is None


def test_http_1_0_has_no_second_request_though_it_asks_to_keep_the_connection() -> None:
    old = b"POST / HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}"
    bad = b"POST / HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 9999999\r\n\r\n{}"
    for parts in ((old, old), (old + old,), (old + bad,)):
        reader = read(*parts)
        assert reader.error is None
        assert len(reader.ready) == 1
        reader.close()
        assert reader._budget.used == 0


def test_http_1_0() -> None:
    old = b"POST /v1/completions HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}"
    request = read(old).ready[0]
    assert request.http10
    assert not request.keep_alive


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"HTTP://a/v1/models?x=//", b"/v1/models"),
        (b"https://a:1/healthz", b"/healthz"),
        (b"http://a", b"/"),
        (b"http://a?x=/healthz", b"/"),
        (b"*", b"*"),
        (b"/http://a/x", b"/http://a/x"),
    ],
)
def test_the_path_of_a_target_in_absolute_form(target: bytes, path: bytes) -> None:
    request = read(b"OPTIONS %b HTTP/1.1\r\n%b\r\n" % (target, HOST)).ready[0]
    assert request.path == path
    assert request.target.partition(b"?")[2] == target.partition(b"?")[2]


@pytest.mark.parametrize("host", [b"a b", b"a/b", b"a@b", b"a,b", b"a?b", b"a#b", b"a\\b"])
def test_a_host_that_is_none_is_refused(host: bytes) -> None:
    """RFC 9112 3.2."""
    reader = read(b"GET / HTTP/1.1\r\nhost: %b\r\n\r\n" % host)
    assert reader.error is not None
    assert reader.error.status == 400


@pytest.mark.parametrize("host", [b"", b"a", b"my_host:8800", b"[::1]:8800", b"[fe80::1%25eth0]"])
def test_a_host_of_any_kind_passes(host: bytes) -> None:
    assert read(b"GET / HTTP/1.1\r\nhost: %b\r\n\r\n" % host).ready


def test_answers_of_our_own() -> None:
    assert (
        answer(200, b"a: b\r\n", b"hi", keep_alive=True)
        == b"HTTP/1.1 200 OK\r\na: b\r\ncontent-length: 2\r\n\r\nhi"
    )
    head = answer(404, b"", b"hi", keep_alive=False, head_only=True)
    assert head == b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
    assert answer(204, b"", b"", keep_alive=True) == b"HTTP/1.1 204 No Content\r\n\r\n"
    assert answer(599, b"", b"", keep_alive=True).startswith(b"HTTP/1.1 599 Status\r\n")
    assert chunk(b"") == b""
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
