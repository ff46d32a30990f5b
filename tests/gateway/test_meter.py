"""Counters and log lines: what Prometheus and people read."""

import asyncio

from llmgw.core.types.routes import RouteModel, RouteReplica, RouteTable
from llmgw.gateway.answer import Answer
from llmgw.gateway.balance import Fleet
from llmgw.gateway.http1 import Request
from llmgw.gateway.meter import LINES_MAX, Access, Meter


class Nobody:
    paused = False
    loopback = True
    peer = "127.0.0.1"

    def write(self, data: bytes) -> None: ...

    def finished(self, *, keep_alive: bool) -> None: ...

    def abort(self) -> None: ...

    def switch(self) -> tuple[asyncio.Transport, asyncio.Protocol, bytes]:
        raise NotImplementedError


def fleet() -> Fleet:
    found = Fleet()
    replica = RouteReplica(replica='odd"\\\nname', endpoint="http://127.0.0.1:1")
    found.apply(RouteTable(version=5, models={"m": RouteModel(replicas=(replica,))}), 0.0)
    return found


def test_the_exposition_is_prometheus_text() -> None:
    meter = Meter()
    meter.request("m", 200, 0.2, 0.1, 100)
    meter.request("m", 200, 1000.0, 0.0, 50)
    meter.request("m", 503, 0.0, 0.0, 1)
    meter.count("retries")
    meter.control_up["http://c"] = False
    meter.request("", 404, 0.0, 0.0, 0)
    meter.model("m").wakeups += 1
    meter.model("m").wait.add(3.0)
    meter.model("m").gap.add(0.02)
    for _ in range(100):
        meter.said("m", b'{"usage":{"prompt_tokens":5,"completion_tokens":16}}')
        meter.said("m", b"{}")
    for _ in range(2):
        meter.refusal("invalid_api_key")
    text = meter.exposition(fleet(), 3).decode()
    lines = text.splitlines()
    assert 'llmgw_gateway_requests_total{model="m",code="200"} 2' in lines
    assert 'llmgw_gateway_request_seconds_bucket{model="m",le="0.25"} 2' in lines
    assert 'llmgw_gateway_request_seconds_bucket{model="m",le="+Inf"} 3' in lines
    assert 'llmgw_gateway_request_seconds_count{model="m"} 3' in lines
    assert 'llmgw_gateway_first_byte_seconds_count{model="m"} 1' in lines
    assert "llmgw_gateway_sent_bytes_total 151" in lines
    assert "llmgw_gateway_retries_total 1" in lines
    assert "llmgw_gateway_connections 3" in lines
    assert 'llmgw_gateway_control_up{control="http://c"} 0' in lines
    assert r'llmgw_gateway_breaker{model="m",replica="odd\"\\\nname"} 0' in lines
    assert r'llmgw_gateway_slow{model="m",replica="odd\"\\\nname"} 0' in lines
    assert 'llmgw_gateway_requests_total{model="",code="404"} 1' in lines
    assert 'llmgw_gateway_wakeups_total{model="m"} 1' in lines
    assert 'llmgw_gateway_wait_seconds_sum{model="m"} 3.0' in lines
    assert 'llmgw_gateway_chunk_gap_seconds_bucket{model="m",le="0.01"} 0' in lines
    assert 'llmgw_gateway_chunk_gap_seconds_bucket{model="m",le="0.02"} 1' in lines
    assert 'llmgw_gateway_prompt_tokens_total{model="m"} 500' in lines
    assert 'llmgw_gateway_completion_tokens_total{model="m"} 1600' in lines
    assert 'llmgw_gateway_refusals_total{reason="invalid_api_key"} 2' in lines
    for name in {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}:
        family = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        assert f"# TYPE {family} " in text


def test_a_line_says_what_became_of_a_request_and_holds_no_query() -> None:
    written: list[bytes] = []
    wall = iter([1_764_506_000.25, 1_764_506_000.999, 1_764_506_001.0])
    access = Access(written.append, lambda: next(wall))
    request = Request(b"POST", b"/v1/models?key=secret", {}, [])
    answer = Answer(Nobody(), request, b"id-1", keep_alive=True)
    for end, why in (("ok", ""), ("broken", 'r1 broke "off"'), ("ok", "one-word")):
        access.request(
            request,
            answer,
            model="m",
            replica="r",
            key="",
            seconds=0.0123,
            first_s=0.01,
            waited_s=0.0,
            end=end,
            why=why,
        )
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
    request = Request(b"GET", b"/v1/\xc3\xa9 \n", {}, [])
    answer = Answer(Nobody(), request, b"id-1", keep_alive=True)
    for _ in range(LINES_MAX):
        access.request(
            request,
            answer,
            model="",
            replica="",
            key="",
            seconds=0.0,
            first_s=0.0,
            waited_s=0.0,
            end="refused",
            why="",
        )
    (data,) = written
    assert data.count(b"\n") == LINES_MAX
    assert 'path="/v1/é \\n"' in data.decode()
