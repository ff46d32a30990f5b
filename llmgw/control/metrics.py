"""Figures of control for Prometheus, in its text form. Counts what is there; may not remember or decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from llmgw.control.looks import blocked
from llmgw.control.loop import Control
from llmgw.wire.status import node_state

Sample = tuple[dict[str, str], float]


def exposition(control: Control) -> str:
    state = control.state
    nodes = Counter(node_state(state, n) for n in state.nodes.values())
    engines = Counter(
        s.report.state for n in state.nodes.values() for s in n.shards if not s.missing
    )
    families: list[tuple[str, str, str, Iterable[Sample]]] = [
        ("llmgw_leader", "gauge", "1 while this control decides", [({}, control.leading)]),
        ("llmgw_epoch", "gauge", "epoch of this control", [({}, state.epoch)]),
        ("llmgw_settling", "gauge", "1 until the fleet was heard", [({}, state.settling)]),
        ("llmgw_paused", "gauge", "1 while an operator's pause lasts", [({}, bool(state.paused))]),
        (
            "llmgw_blocked",
            "gauge",
            "1 while something waits for a yes",
            [({}, bool(blocked(control)[0]))],
        ),
        ("llmgw_nodes", "gauge", "nodes by state", [({"state": k}, v) for k, v in nodes.items()]),
        (
            "llmgw_shards",
            "gauge",
            "shards by state",
            [({"state": k}, v) for k, v in engines.items()],
        ),
        (
            "llmgw_replicas_ready",
            "gauge",
            "ready replicas by model",
            [
                (
                    {"model": m},
                    sum(r.model == m and r.complete_and_ready for r in control.found.replicas),
                )
                for m in state.catalog.models
            ],
        ),
        ("llmgw_gateways", "gauge", "gateways that are counted", [({}, len(state.gateways))]),
        ("llmgw_passes_total", "counter", "passes of the loop", [({}, control.passes)]),
        (
            "llmgw_route_version",
            "gauge",
            "version of the route table",
            [({}, control.routes.version)],
        ),
        (
            "llmgw_inventory_ok",
            "gauge",
            "1 while history is kept",
            [({}, not control.keeper.problem)],
        ),
        (
            "llmgw_catalog_ok",
            "gauge",
            "1 while the file is in use",
            [({}, not control.catalogs.error)],
        ),
    ]
    lines = []
    for name, kind, what, samples in families:
        lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {_figure(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _figure(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    quoted = (
        '{}="{}"'.format(k, v.replace("\\", "\\\\").replace('"', '\\"')) for k, v in labels.items()
    )
    return "{" + ",".join(quoted) + "}"
