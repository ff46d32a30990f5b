"""Log lines: what people read."""

import asyncio

from llmgw.gateway.answer import Answer
from llmgw.gateway.books import LINES_MAX, Access, Ended
from llmgw.gateway.http1 import Request, begun


class Nobody:
    paused = False
    loopback = True
    peer = "127.0.0.1"

    def write(self, data: bytes) -> None: ...

    def finished(self, *, keep_alive: bool) -> None: ...

    def abort(self) -> None: ...

    def switch(self) -> tuple[asyncio.Transport, asyncio.Protocol, bytes]:
        raise NotImplementedError


def ended(request: Request, model: str = "", end: str = "refused", why: str = "") -> Ended:
    answer = Answer(Nobody(), request, b"id-1", keep_alive=True)
    return Ended(request, answer, model, model and "r", "", 0.0123, 0.01, end, why, b"", None, None)


def test_a_line_says_what_became_of_a_request_and_holds_no_query() -> None:
    written: list[bytes] = []
    wall = iter([1_764_506_000.25, 1_764_506_000.999, 1_764_506_001.0])
    access = Access(written.append, lambda: next(wall))
    request = begun(b"POST", b"/v1/models?key=secret", {}, [])
    for end, why in (("ok", ""), ("broken", 'r1 broke "off"'), ("ok", "one-word")):
        access.requests([ended(request, "m", end, why)])
    assert not written, "lines go out together, once a second"
    access.flush()
    access.flush()
    start = "request  id=id-1 method=POST path=/v1/models status=0 model=m replica=r key=- bytes=0 "
    start += "ms=12.3 first_ms=10.0 waited_ms=0"
    assert written[0].decode().splitlines() == [
        f"2025-11-30T12:33:20Z info    {start} end=ok",
        f'2025-11-30T12:33:20Z warning {start} end=broken why="r1 broke \\"off\\""',
        f"2025-11-30T12:33:21Z info    {start} end=ok why=one-word",
    ]
    assert len(written) == 1


def test_lines_do_not_pile_up() -> None:
    written: list[bytes] = []
    access = Access(written.append, lambda: 0.0)
    request = begun(b"GET", b"/v1/\xc3\xa9 \n", {}, [])
    for _ in range(LINES_MAX // 2):
        access.requests([ended(request), ended(request)])
    (data,) = written
    assert data.count(b"\n") == LINES_MAX
    assert 'path="/v1/é \\n"' in data.decode()
