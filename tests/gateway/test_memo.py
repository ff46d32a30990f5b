"""Heads known again (`gateway.memo`): with it and without it the same bytes mean the same, however they arrive.

Request smuggling lives in such shortcuts, so nothing here is about speed: two readers get the same reads, one of them
is made to forget every head, and all that can be seen of them is compared after each read.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.gateway import memo
from llmgw.gateway.http1 import Budget, RequestReader
from llmgw.gateway.reply import BadReplyError, ReplyReader, Seen

HEADS = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\nauthorization: Bearer k\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Own: 1\r\nContent-Length:%d\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 00%d \r\nconnection: keep-alive\r\n\r\n",
)
ODD = (
    b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\na",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nx-content-length: 3\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nabc",
    b"POST / HTTP/1.0\r\ncontent-length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
)
BODIES = st.sampled_from([b"", b"a", b"{}", b"x" * 40, b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
WHOLE = st.builds(lambda head, body: head % len(body) + body, st.sampled_from(HEADS), BODIES)
SENT = st.lists(st.one_of(WHOLE, WHOLE, WHOLE, st.sampled_from(ODD)), min_size=1, max_size=6)
#: Where reads end; at the ends of messages too, as with clients that wait for their answers.
CUTS = st.lists(st.integers(0, 400), max_size=6)


def reads(messages: list[bytes], cuts: list[int]) -> list[bytes]:
    data = b"".join(messages)
    ends: list[int] = []
    for message in messages:
        ends.append((ends[-1] if ends else 0) + len(message))
    at = sorted({*ends, *(c for c in cuts if c < len(data))})
    return [data[a:b] for a, b in zip([0, *at], at, strict=False)]


def seen(reader: RequestReader) -> Any:
    ready = [
        (r.method, r.target, r.path, r.own, r.forward, r.body, r.keep_alive, r.http10, r.upgrade)
        for r in reader.ready
    ]
    rest = (reader.error, reader.continue_wanted, reader.partial, reader.in_head, reader.beyond)
    return ready, rest


@given(SENT, CUTS)
def test_a_request_means_the_same(messages: list[bytes], cuts: list[int]) -> None:
    """Asked first whether it stands alone, as `proxy` does, or not; and to a reader that never knows a head."""
    readers = [RequestReader(Budget(), 100) for _ in range(3)]
    for data in reads(messages, cuts):
        request = readers[0].alone(data)
        if request is not None:
            readers[0].ready.append(request)
        else:
            readers[0].feed(data)
        for reader in readers[1:]:
            reader.feed(data)
        readers[2]._known = None
        one, other, parsed = map(seen, readers)
        assert one == other == parsed
    assert len({reader._budget.used for reader in readers}) == 1
    for reader in readers:
        reader.close()
        assert reader._budget.used == 0


def test_a_head_is_known_again_also_where_the_body_comes_later() -> None:
    """What the comparison above is worth: the shortcut is taken."""
    reader = RequestReader(Budget())
    parsed: list[bytes] = []

    def parse(data: bytes) -> None:
        parsed.append(data)
        RequestReader._parse(reader, data)

    reader._parse = parse  # type: ignore[method-assign]
    first, second = HEADS[0] % 3 + b"abc", HEADS[0] % 12 + b"abcdefghijkl"
    reader.feed(first)
    assert parsed == [first]
    reader.feed(second)
    reader.feed(second[:-12])
    assert reader.partial
    reader.feed(second[-12:-5])
    reader.feed(second[-5:])
    assert [r.body for r in reader.ready] == [b"abc", second[-12:], second[-12:]]
    assert [d for d in parsed if d] == [first]


def test_a_length_is_that_of_its_own_head_whatever_came_before() -> None:
    """Of as many digits as last time or not, after heads that are others, cut short, or none at all."""
    start, rest = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: ", b"\r\nx: y\r\n\r\n"
    head = memo.head(start + b"3" + rest, 3)
    assert head is not None
    good = [b"3", b"45", b"6", b"0", b"0012", b"1234567890"]
    bad = [b"", b"12x", b"+1", b"1 ", b"12345678901", b"\xb2", b"1_0"]
    for digits in good:
        for other in bad:
            assert head.length(start + other + rest) == -1
            assert head.length(start + digits) == -1
            assert head.length(start + digits + rest[:-1]) == -1
            assert head.length(start + digits + b"\r\nx: z\r\n\r\n") == -1
            assert head.length(start + digits + rest + b"1" * 9) == int(digits)
            assert head.end == len(start + digits + rest)
        assert head.length(b"G" + start[1:] + digits + rest) == -1


def test_what_looks_like_a_known_request_is_none_inside_another_nor_behind_the_last() -> None:
    known = HEADS[0] % 3 + b"abc"
    for before, error in (
        (HEADS[0] % 200, False),  # it is part of a body
        (HEADS[1][:30], False),  # of a header
        (HEADS[0].replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") % 1 + b"a", False),
        (HEADS[1] % 201 + b"a" * 201, True),
    ):
        reader = RequestReader(Budget(), 200)
        reader.feed(known)
        assert reader.alone(known) is not None
        reader.feed(before)
        assert (reader.error is not None) == error
        assert reader.alone(known) is None
    reader = RequestReader(Budget())
    reader.feed(known)
    assert reader.alone(known + known) is None
    assert reader.alone(known[:-1]) is None
    reader.close()
    assert reader.alone(known) is None


def test_limits_hold_for_heads_known_again() -> None:
    reader = RequestReader(Budget(), body_limit=10)
    reader.feed(HEADS[0] % 3 + b"abc")
    reader.feed(HEADS[0] % 11 + b"abcdefghijk")
    assert reader.error is not None
    assert reader.error.status == 413
    budget = Budget(limit=10)
    reader = RequestReader(budget)
    reader.feed(HEADS[0] % 3 + b"abc")
    reader.feed(HEADS[0] % 9 + b"abcdefghi")
    assert reader.error is not None
    assert reader.error.status == 503


REPLIES = (
    b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nx-own: 1\r\n\r\n",
)
ODD_REPLIES = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nabc",
)
ANSWERS = st.one_of(
    st.builds(lambda head, body: head % len(body) + body, st.sampled_from(REPLIES), BODIES),
    st.builds(lambda head, body: head % 2 + body, st.sampled_from(REPLIES), BODIES),
    st.sampled_from(ODD_REPLIES),
)


def read(answer: bytes, cuts: list[int], known: Seen, *, plain: bool) -> Any:
    reader, got = ReplyReader(known, plain=plain), []
    for data in reads([answer], cuts):
        try:
            got.append(reader.feed(data))
        except BadReplyError as e:
            # What fails inside a body fails a read earlier or later, and in other words, as nobody parses it.
            return ["bad", "sent more" in str(e) or reader.answered]
    how = (reader.answered, reader.done, reader.reusable, reader.tidy, reader.ends_at_eof)
    head = (reader.status, reader.lines, reader.length, reader.chunked, reader.content_type)
    return b"".join(got), how, head, reader.encoded


@given(st.lists(st.tuples(ANSWERS, CUTS), min_size=1, max_size=6), st.booleans())
def test_an_answer_means_the_same(answers: list[tuple[bytes, list[int]]], plain: bool) -> None:
    known = Seen()
    for answer, cuts in answers:
        assert read(answer, cuts, known, plain=plain) == read(answer, cuts, Seen(), plain=plain)


def test_an_engines_head_is_known_again() -> None:
    known = Seen()
    for body in (b"ab", b"abc", b"a" * 300):
        reader = ReplyReader(known)
        assert reader.feed(REPLIES[0] % len(body) + body) == body
        assert (reader.done, reader.reusable, reader.parses) == (True, True, body == b"ab")
        assert reader.content_type == b"application/json"


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST / HTTP/1.1\ncontent-length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nCONTENT-LENGTH: 1\r\ncontent-length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 12345678901\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\nx: " + b"y" * memo.HEAD_MAX + b"\r\n\r\n",
    ],
)
def test_what_is_not_kept(head: bytes) -> None:
    assert memo.head(head, head.count(b"\n") - 2) is None
