"""Counters and log lines: what Prometheus and people read."""

import json

from llmgw.core.types.routes import RouteModel, RouteReplica, RouteTable
from llmgw.gateway.answer import Answer
from llmgw.gateway.balance import Fleet
from llmgw.gateway.http1 import Request
from llmgw.gateway.meter import Access, Meter


class Nobody:
    paused = False
    loopback = True

    def write(self, data: bytes) -> None: ...

    def finished(self, *, keep_alive: bool) -> None: ...

    def abort(self) -> None: ...


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
    assert r'llmgw_gateway_failing{model="m",replica="odd\"\\\nname"} 0' in lines
    for name in {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}:
        family = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        assert f"# TYPE {family} " in text


def test_a_line_holds_no_query_and_is_whole_json() -> None:
    written: list[bytes] = []
    wall = iter([1_764_506_000.25, 1_764_506_000.999, 1_764_506_001.0])
    access = Access(written.append, lambda: next(wall))
    request = Request(b"POST", b"/v1/models?key=secret", {}, [])
    answer = Answer(Nobody(), request, b"id-1", keep_alive=True)
    for _ in range(3):
        access.request(
            request,
            answer,
            model="m",
            replica="r",
            key="bob",
            seconds=0.0123,
            first_s=0.01,
            waited_s=0.0,
            end="ok",
            why="",
        )
    assert not written, "lines go out together, once a second"
    access.flush()
    access.flush()
    (data,) = written
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line["timestamp"][-7:] for line in lines] == ["20.250Z", "20.999Z", "21.000Z"]
    assert lines[0]["event"] == "request"
    assert (lines[0]["path"], lines[0]["ms"], lines[0]["key"]) == ("/v1/models", 12.3, "bob")
    assert b"secret" not in data
