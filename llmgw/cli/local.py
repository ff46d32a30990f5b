"""What one agent knows, in the form of a status: for `llmgw status` on a node whose control is away.

Answers for: the same shape with what a node cannot know left out. May not import msgspec (P10).
"""

from __future__ import annotations

from typing import Any

ENDED = frozenset({"stopped", "failed"})
Json = dict[str, Any]


def status_of(report: Json, why: str) -> Json:
    """`report` is an agent's inventory (contract/http.md); `why` says why control was not asked."""
    replicas: dict[str, list[Json]] = {}
    for shard in report.get("shards") or ():
        replica = shard.get("replica") or shard["shard"].rpartition("/")[0]
        replicas.setdefault(replica, []).append(shard)
    node = report["node"]
    running = [s for s in report.get("shards") or () if s.get("state") not in ENDED]
    drawn = [g["power_w"] for g in report.get("gpus") or () if g.get("power_w") is not None]
    return {
        "schema": "llmgw.status/1",
        "leader": None,
        "settling": None,
        "blocked": None,
        "confirm": None,
        "paused": None,
        "catalog": None,
        "nodes": [
            {
                "node": node,
                "state": "ready",
                "since": None,
                "version": report.get("version"),
                "gpus": [_gpu(g) for g in report.get("gpus") or ()],
                "power_w": sum(drawn) if drawn else None,
                "power_budget_w": (report.get("capacity") or {}).get("power_w"),
                "foreign": [_foreign(f) for f in report.get("foreign") or ()],
                "engines": len(running),
            }
        ],
        "models": [],
        "replicas": [_replica(name, shards, node) for name, shards in sorted(replicas.items())],
        "stops_pending": [],
        "warnings": [f"{why}: only what runs on {node} is shown"],
    }


def _gpu(gpu: Json) -> Json:
    return {
        "uuid": gpu["uuid"],
        "index": gpu.get("index", 0),
        "name": gpu.get("name", ""),
        "memory": gpu.get("memory", 0),
        "reserved": None,
        "used": gpu.get("memory_used", 0),
        "foreign": None,
        "healthy": gpu.get("healthy"),
        "lost": gpu.get("lost"),
        "trouble": gpu.get("trouble") or None,
        "driver": gpu.get("driver") or None,
        "link": gpu.get("link") or None,
        "power_w": gpu.get("power_w"),
        "power_limit_w": gpu.get("power_limit_w"),
    }


def _foreign(process: Json) -> Json:
    about = {key: process.get(key) for key in ("pid", "command")}
    return about | {
        "gpu": process.get("gpu") or None,
        "memory": process.get("memory") or 0,
        "port": process.get("port") or 0,
        "shard": process.get("shard") or None,
        "why": process.get("why") or None,
    }


def _replica(name: str, shards: list[Json], node: str) -> Json:
    lead = shards[0]
    return {
        "replica": name,
        "incarnation": lead.get("incarnation", ""),
        "model": lead.get("model", ""),
        "profile": lead.get("profile", ""),
        "state": lead.get("state", "unknown"),
        "have": len(shards),
        "want": lead.get("world_size") or len(shards),
        "endpoint": lead.get("endpoint") or None,
        "in_flight": None,
        "since": lead.get("started_at") or None,
        "adopted_at": None,
        "drift": None,
        "breaker": None,
        "shards": [
            {
                "shard": s["shard"],
                "node": node,
                "gpus": s.get("gpus") or [],
                "port": s.get("port") or 0,
                "pid": s.get("pid"),
                "state": s.get("state", "unknown"),
                "progress": s.get("progress"),
                "compute": s.get("compute"),
                "gpu_peak": s.get("gpu_peak"),
                "host_peak": s.get("host_peak"),
                "error": s.get("error"),
            }
            for s in shards
        ],
    }
