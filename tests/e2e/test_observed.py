"""Dashboard and alerts name only what the three daemons really tell, and that is Prometheus text with its help."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from scripts import dashboard
from scripts.generated import ROOT, stale
from tests.e2e.conftest import Make, fake, model

RULES = ROOT / "packaging" / "prometheus" / "llmgw.rules.yaml"
NAME = re.compile(r"\bllmgw_[a-z0-9_]+")


GPUS = '[{"uuid": "GPU-1", "index": 0, "name": "card", "memory": 8589934592, "power_w": 20}]'


def expressions() -> dict[str, str]:
    """PromQL -> where it stands."""
    found = {
        t["expr"]: f"panel {p['title']}"
        for p in json.loads(dashboard.FILE.read_text())["panels"]
        for t in p.get("targets", ())
    }
    rules = [r for g in yaml.safe_load(RULES.read_text())["groups"] for r in g["rules"]]
    return found | {r["expr"]: f"alert {r['alert']}" for r in rules}


def test_the_dashboard_is_what_its_script_writes() -> None:
    assert not stale(dashboard.files()), "run 'make docs'"


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert set(rule["annotations"]) == {"summary", "next"}, rule["alert"]
            assert rule["labels"]["severity"] in {"info", "warning", "critical"}


@pytest.fixture
def told(make: Make) -> set[str]:
    """Names of all samples of a fleet with one ready engine that was asked once, and of one question refused."""
    fleet = make({"alpha": model(fake("--alias", "alpha"))})
    gpus = fleet.folder / "gpus.json"
    gpus.write_text(GPUS)
    fleet.more["agent"] = ["--gpus", str(gpus)]
    fleet.start("control", "agent")
    fleet.ready("alpha")
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    url = f"{fleet.urls['gateway']}/v1/chat/completions"
    assert fleet.http.post(url, json={"model": "alpha", **chat}).status_code == 200
    assert fleet.http.post(url, json={"model": "nobody", **chat}).status_code == 404
    names = set()
    for part in ("control", "agent", "gateway"):
        text = fleet.http.get(f"{fleet.urls[part]}/metrics").raise_for_status().text
        for family in text_string_to_metric_families(text):
            assert family.documentation, family.name
            names |= {s.name for s in family.samples}
    return names


def test_every_name_that_is_asked_for_is_told(told: set[str]) -> None:
    for expression, where in expressions().items():
        for name in NAME.findall(expression):
            assert name in told, f"{where} asks for {name}"
