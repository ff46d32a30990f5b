"""What a request costs, in operations: seconds would test the machine (design/performance.md 3).

CPython's time on a small request is its calls. One that slipped in by accident is a few tenths of a microsecond for
every request there is; who adds one on purpose raises the figure here. `python -m bench.gateway` measures.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections import Counter
from types import FrameType
from typing import Any, cast

from llmgw.core.types.routes import RouteKey, RouteModel, RouteReplica, RouteTable
from llmgw.gateway.books import Access
from llmgw.gateway.http1 import chunk
from llmgw.gateway.proxy import Downstream
from llmgw.gateway.state import Gateway
from llmgw.gateway.upstream import Dialer, Upstream

KEY = b"sk-test"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
ASK = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
DOCUMENT = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
EVENT = chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Transport:
    """Takes what is written; its own calls are not counted."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write = self.written.append
        self.peer = "127.0.0.1"

    def get_extra_info(self, name: str) -> Any:
        return (self.peer, 1) if name == "peername" else None

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class Pair:
    """A client and an engine with a gateway between them that has everything on: a key, counters, the log."""

    def __init__(self) -> None:
        gateway = Gateway(
            clock=lambda: 1.0, access=Access(lambda _: None, lambda: 1.0), open_without_keys=False
        )
        gateway.connect = Dialer(lambda _: None, lambda: 1.0).connect
        replica = RouteReplica(replica="e", endpoint="http://127.0.0.1:1")
        route = RouteModel(status="loaded", replicas=(replica,))
        key = RouteKey(id="k", sha256=hashlib.sha256(KEY).hexdigest(), models=("m",))
        gateway.apply(RouteTable(version=1, models={"m": route}, keys=(key,)))
        self.gateway = gateway
        self.engine = Upstream(gateway.fleet.targets["m"].endpoints[0], lambda: 1.0)
        self.client = Downstream(gateway)
        self.asked, self.answered = Transport(), Transport()
        self.engine.connection_made(cast("asyncio.BaseTransport", self.asked))
        self.client.connection_made(cast("asyncio.BaseTransport", self.answered))
        self.engine.release()

    def ask(self, text: bytes = b"") -> None:
        """Each of another length."""
        body = BODY + b" " * len(text)
        self.client.data_received(ASK % (KEY, len(body), body))

    def answer(self, text: bytes = b"") -> None:
        document = DOCUMENT + b" " * len(text)
        self.engine.data_received(WHOLE % (len(document), document))


def calls(work: Any, times: int) -> float:
    """Python functions called, without those of this file."""
    seen: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename != __file__:
            seen[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        for n in range(times):
            work(n)
    finally:
        sys.setprofile(None)
    return sum(seen.values()) / times


def run(scenario: Any) -> None:
    async def within() -> None:
        scenario()

    asyncio.run(within())


def test_calls_of_a_small_request() -> None:
    def scenario() -> None:
        pair = Pair()
        pair.ask()
        pair.answer()

        def one(n: int) -> None:
            pair.ask(b"x" * (n % 7))
            pair.answer(b"x" * (n % 5))

        assert calls(one, 100) <= 46
        assert len(pair.asked.written) == len(pair.answered.written) == 101
        assert all(w.startswith(b"HTTP/1.1 200 ") for w in pair.answered.written)
        assert pair.gateway.meter.models["m"].codes == {200: 101}
        assert pair.gateway.meter.models["m"].completion == 202

    run(scenario)


def test_what_each_request_makes_has_no_dict() -> None:
    """CPython 3.11 gives a class room for the attributes of its first instances, less with each that is made.

    Those that an instance got only with its answer found none left once thirty requests had begun before the first
    answer: from then on each request had dicts of its own, a tenth of what it cost.
    """

    def scenario() -> None:
        pair = Pair()
        for _ in range(2):  # read, and known again
            pair.ask()
            exchange = pair.client._exchange
            assert exchange is not None
            made = (
                exchange,
                exchange._request,
                exchange._asked,
                exchange.answer,
                pair.engine.reader,
            )
            assert not [m for m in (*made, pair.engine, pair.client) if hasattr(m, "__dict__")]
            pair.answer()

    run(scenario)


def test_calls_of_an_event() -> None:
    def scenario() -> None:
        pair = Pair()
        pair.client.data_received(ASK % (KEY, len(BODY), BODY))
        pair.engine.data_received(EVENTS)
        assert calls(lambda _: pair.engine.data_received(EVENT), 100) <= 4
        assert pair.answered.written[1:] == [EVENT] * 100
        assert pair.gateway.fleet.targets["m"].endpoints[0].in_flight == 1

    run(scenario)


def test_what_a_gateway_does_not_load() -> None:
    """Idle memory is mostly modules (P11): rich alone, which structlog would colour with, is 4 MB."""
    unwanted = ("rich", "httpx", "yaml", "statistics", "starlette", "uvicorn")
    text = (
        "import sys; from llmgw import lean; lean.load('structlog'); "
        "import llmgw.cli.daemons, llmgw.cli.log, llmgw.gateway.main; "
        f"print([m for m in {unwanted} if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
