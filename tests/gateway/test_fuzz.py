"""The parsers shown what nobody sends: kept bytes, and those bytes bent (HYPOTHESIS_PROFILE=long looks for new ones).

What must hold of any bytes at all: no error but the ones meant, the same however they are cut, nothing held in the end,
and never another reading than that of a second parser (h11), which is what smuggling lives on.
"""

import re

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.gateway.http1 import HEAD_BYTES, Budget, RequestReader
from llmgw.gateway.reply import BadReplyError, ReplyReader
from tests.gateway.kept import kept

REQUESTS = kept("requests") | kept("smuggling")
REPLIES = kept("replies")
#: What parsers trip over, to be put anywhere.
PIECES = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b";", b",", b"0", b"+", b"-", b"0x", b"\xff", b"\x0b",
    b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: y\r\n", b"Connection: close\r\n",
    b"Upgrade: websocket\r\n", b"Connection: upgrade\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/1.1",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"0\r\n\r\n", b"3\r\nabc\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", b"A" * 300,
]  # fmt: skip


LENGTHS = [
    b"0", b"1", b"2", b"13", b"14", b"013", b"0000000013", b"99", b"+13", b"-1", b"1 3", b"13 ", b"13,13", b"", b"0x0d",
    b"1_3", b"13\r\nContent-Length: 2", b"13\r\nTransfer-Encoding: chunked", b"13\n", b"1\x003", b"\xb2", b"9" * 30,
]  # fmt: skip


@st.composite
def bent(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A kept case, changed in a few places, perhaps with another behind it."""
    data = draw(st.sampled_from(seeds))
    if draw(st.booleans()):
        data += draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        upto = at + draw(st.integers(0, 12))
        put = draw(st.sampled_from(PIECES) | st.binary(max_size=3))
        data = data[:at] + put + data[draw(st.sampled_from([at, upto])) :]
    return data


def cut(draw: st.DataObject, data: bytes) -> list[bytes]:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def read(parts: list[bytes]) -> tuple[list[tuple[object, ...]], int, RequestReader]:
    budget = Budget()
    reader = RequestReader(budget, 1 << 20)
    for part in parts:
        reader.feed(part)
    # Nobody reads the length again: of a head that is known it may be that of the one before.
    found: list[tuple[object, ...]] = [
        (
            r.method,
            r.target,
            {**r.own, b"content-length": b""},
            r.forward,
            r.body,
            r.keep_alive,
            r.http10,
            r.upgrade,
        )
        for r in reader.ready
    ]
    status = reader.error.status if reader.error is not None else 0
    assert budget.used >= sum(len(r.body) for r in reader.ready)
    return found, status, reader


def check_request(data: bytes, parts: list[bytes]) -> None:
    whole, status, reader = read([data])
    split, split_status, other = read(parts)
    assert split == whole
    assert split_status == status
    assert status in (0, 400, 405, 408, 413, 417, 431, 503, 505)
    for one in (reader, other):
        one.close()
        assert one._budget.used == 0
    agree(data, whole)


def agree(data: bytes, ours: list[tuple[object, ...]]) -> None:
    """Each of our requests is the one that h11 reads in that place, as far as h11 goes."""
    peer = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES * 2)
    peer.receive_data(data)
    for method, target, _, _, body, *_, upgrade in ours:
        try:
            head = peer.next_event()
            if not isinstance(head, h11.Request):
                return
            got = b""
            while isinstance(event := peer.next_event(), h11.Data):
                got += event.data
        except h11.RemoteProtocolError:
            return  # stricter than we are
        assert head.method == method
        assert target in (head.target, b"/" + head.target.partition(b"//")[2].partition(b"/")[2])
        assert upgrade or got == body
        if upgrade or not isinstance(event, h11.EndOfMessage):
            return
        if peer.our_state is not h11.SEND_RESPONSE:
            return
        peer.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        peer.send(h11.EndOfMessage())
        if peer.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            return
        peer.start_next_cycle()


@given(bent([*REQUESTS.values()]), st.data())
def test_whatever_a_client_sends(data: bytes, draw: st.DataObject) -> None:
    check_request(data, cut(draw, data))


@st.composite
def again(draw: st.DrawFn) -> list[bytes]:
    """What a client sends again and again, each a read of its own; somewhere it is another, or hardly so."""
    seed = draw(st.sampled_from([*kept("requests").values()]))
    parts = [seed] * draw(st.integers(1, 3))
    for _ in range(draw(st.integers(1, 3))):
        other = draw(bent([seed]))
        if draw(st.booleans()):
            length = draw(st.sampled_from(LENGTHS))
            before, *rest = re.split(rb"(?i)(?<=content-length: )[0-9]+", seed, maxsplit=1)
            other = before + b"".join(length + after for after in rest)
            other += draw(st.binary(max_size=20))
        parts += [other, seed]
    return parts


@given(again(), st.data())
def test_whatever_follows_what_came_before(parts: list[bytes], draw: st.DataObject) -> None:
    """A head that is known is not parsed anew: it must be read as if it were."""
    check_request(b"".join(parts), parts)
    check_request(b"".join(parts), [piece for part in parts for piece in cut(draw, part)])


@pytest.mark.parametrize("name", REQUESTS)
def test_what_was_kept_is_read_the_same_byte_by_byte(name: str) -> None:
    data = REQUESTS[name]
    check_request(data, [bytes([b]) for b in data])


@given(st.binary(max_size=300), st.data())
def test_noise(data: bytes, draw: st.DataObject) -> None:
    check_request(data, cut(draw, data))
    check_reply(data, cut(draw, data), plain=False, switch=True)


Read = tuple[bytes, int, bool, bool, bool, bool]


def answered(parts: list[bytes], *, plain: bool, switch: bool) -> Read | None:
    """The body, status and what is known at the end; None where it is no answer."""
    reader = ReplyReader(plain=plain)
    reader.may_switch = switch
    body = b""
    try:
        for part in parts:
            if reader.done and not reader.switched and not part:
                continue
            body += part if reader.switched else reader.feed(part)
    except BadReplyError:
        return None
    finally:
        reader.close()
    return body, reader.status, reader.answered, reader.done, reader.switched, reader.ends_at_eof


def check_reply(data: bytes, parts: list[bytes], *, plain: bool, switch: bool) -> None:
    whole = answered([data], plain=plain, switch=switch)
    split = answered(parts, plain=plain, switch=switch)
    if whole is None or split is None:
        # What was passed on before the fault was seen depends on the cuts; that it is a fault does not.
        assert whole == split
        return
    assert split == whole
    body, status, has_head, *_ = whole
    assert not body or has_head
    assert not has_head or 200 <= status <= 999 or (status == 101 and switch)


@given(bent([*REPLIES.values()]), st.data(), st.booleans(), st.booleans())
def test_whatever_an_engine_sends(
    data: bytes,
    draw: st.DataObject,
    plain: bool,
    switch: bool,
) -> None:
    check_reply(data, cut(draw, data), plain=plain, switch=switch)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", REPLIES)
def test_what_was_kept_of_answers_is_read_the_same_byte_by_byte(name: str, plain: bool) -> None:
    data = REPLIES[name]
    check_reply(data, [bytes([b]) for b in data], plain=plain, switch=True)
