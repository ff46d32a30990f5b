"""Counters: what Prometheus reads."""

from llmgw.core.types.routes import RouteModel, RouteReplica, RouteTable
from llmgw.gateway.balance import Fleet
from llmgw.gateway.meter import Meter


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
        meter.model("m").said(b'{"usage":{"prompt_tokens":5,"completion_tokens":16}}')
        meter.model("m").said(b"{}")
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
