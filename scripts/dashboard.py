"""Writes the Grafana dashboard: one row for each question that an admin has.

Answers for: packaging/grafana/llmgw.json (schema 39, Grafana 10 and newer). Names of metrics are checked against what
the daemons tell by tests/e2e/test_observed.py.

    python -m scripts.dashboard [--check]
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from scripts.generated import ROOT, settle

FILE = ROOT / "packaging" / "grafana" / "llmgw.json"
WIDTH, HEIGHT = 24, 8
RATE = "[$__rate_interval]"


class Panel(NamedTuple):
    """`queries`: PromQL -> legend; `kind`: timeseries or stat."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    about: str = ""


def quantile(share: float, name: str) -> str:
    return (
        f"histogram_quantile({share}, sum by (le, model) (rate(llmgw_gateway_{name}_bucket{RATE})))"
    )


ROWS: dict[str, list[Panel]] = {
    "Is it well": [
        Panel("Leader", {"sum(llmgw_leader)": "controls that decide"}, kind="stat", about="One, always."),
        Panel("Settling, paused, blocked",
              {"max(llmgw_settling)": "settling", "max(llmgw_paused)": "paused", "max(llmgw_blocked)": "blocked"},
              kind="stat", about="Each holds decisions back; llmgw status says why."),
        Panel("Nodes", {"sum by (state) (llmgw_nodes)": "{{state}}"}, kind="stat"),
        Panel("Engines", {"sum by (state) (llmgw_shards)": "{{state}}"}, kind="stat"),
    ],
    "What clients see": [
        Panel("Requests", {f"sum by (model, code) (rate(llmgw_gateway_requests_total{RATE}))": "{{model}} {{code}}"},
              unit="reqps"),
        Panel("Time to the first byte, median and 95 %",
              {quantile(0.5, "first_byte_seconds"): "{{model}} p50",
               quantile(0.95, "first_byte_seconds"): "{{model}} p95"},
              unit="s"),
        Panel("Time between the pieces of a stream, median",
              {quantile(0.5, "chunk_gap_seconds"): "{{model}}"}, unit="s"),
        Panel("Tokens a second", {
            f"sum by (model) (rate(llmgw_gateway_completion_tokens_total{RATE}))": "{{model}} answers",
            f"sum by (model) (rate(llmgw_gateway_prompt_tokens_total{RATE}))": "{{model}} prompts"}),
    ],
    "Waiting and waking": [
        Panel("In flight and waiting", {"sum by (model) (llmgw_gateway_in_flight)": "{{model}} in flight",
                                        "sum by (model) (llmgw_gateway_waiting)": "{{model}} waiting"}),
        Panel("Wake-ups", {f"sum by (model) (increase(llmgw_gateway_wakeups_total{RATE}))": "{{model}}"}),
        Panel("Waits, 95 %", {quantile(0.95, "wait_seconds"): "{{model}}"}, unit="s"),
        Panel("Ready replicas", {"sum by (model) (llmgw_replicas_ready)": "{{model}}"}),
    ],
    "GPUs": [
        Panel("Memory in use", {"sum by (instance, index) (llmgw_gpu_memory_used_bytes)": "{{instance}} {{index}}"},
              unit="bytes"),
        Panel("Share of memory in use",
              {"sum by (instance, index) (llmgw_gpu_memory_used_bytes) / "
               "sum by (instance, index) (llmgw_gpu_memory_bytes)": "{{instance}} {{index}}"}, unit="percentunit"),
        Panel("Power", {"sum by (instance, index) (llmgw_gpu_power_watts)": "{{instance}} {{index}}"}, unit="watt"),
    ],
    "What went wrong": [
        Panel("Refused by the gateway", {f"sum by (reason) (rate(llmgw_gateway_refusals_total{RATE}))": "{{reason}}"}),
        Panel("Broken answers, retries, breakers opened",
              {f"sum(rate(llmgw_gateway_broken_total{RATE}))": "broken",
               f"sum(rate(llmgw_gateway_retries_total{RATE}))": "retries",
               f"sum(rate(llmgw_gateway_breaker_opened_total{RATE}))": "opened"}),
        Panel("Breakers now", {"max by (replica) (llmgw_gateway_breaker) > 0": "{{replica}}"}),
        Panel("Attempts of an engine", {"max by (shard) (llmgw_shard_attempt) > 1": "{{shard}}"}),
    ],
}  # fmt: skip


def panel(number: int, x: int, y: int, width: int, of: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [
        {"datasource": source, "expr": expr, "legendFormat": legend, "refId": chr(ord("A") + i)}
        for i, (expr, legend) in enumerate(of.queries.items())
    ]
    return {
        "id": number,
        "type": of.kind,
        "title": of.title,
        "description": of.about,
        "datasource": source,
        "gridPos": {"x": x, "y": y, "w": width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": of.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})  # fmt: skip
        width = WIDTH // len(row)
        for i, of in enumerate(row):
            panels.append(panel(len(panels) + 1, i * width, y + 1, width, of))
        y += 1 + HEIGHT
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": "llmgw",
        "uid": "llmgw",
        "schemaVersion": 39,
        "tags": ["llmgw"],
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source]},
        "panels": panels,
    }


def files() -> dict[Path, str]:
    return {FILE: json.dumps(dashboard(), indent=1) + "\n"}


if __name__ == "__main__":
    sys.exit(settle(files(), sys.argv[1:]))
