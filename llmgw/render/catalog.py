"""The catalog (`llmgw.catalog/1`) in words: one line a profile. May not know YAML."""

from __future__ import annotations

from typing import Any

from llmgw.render.page import Table, age, size

HEAD = (
    "MODEL",
    "PROFILE",
    "REPLICAS",
    "IDLE",
    "NODES",
    "GPUS",
    "MEMORY",
    "ENGINE",
    "WEIGHTS",
    "ALIASES",
)


def page(document: dict[str, Any]) -> list[Table | str]:
    rows = [_row(m, p) for m in document["models"] for p in m["profiles"]]
    return [Table(HEAD, rows)] if rows else ["no model"]


def _row(model: dict[str, Any], profile: dict[str, Any]) -> list[str]:
    scaling, gpus = model["scaling"], profile["gpus"]
    idle = scaling["idle_timeout_s"]
    on_demand = scaling["max"] > scaling["min"]
    memory = profile["gpu_memory_bytes"] if gpus else profile["host_memory_bytes"] or None
    return [
        model["name"],
        profile["name"],
        f"{scaling['min']}-{scaling['max']}",
        "-" if not on_demand else "never" if idle is None else age(idle),
        str(profile["nodes"]),
        str(gpus) if gpus else "cpu",
        "whole GPU" if gpus and memory is None else size(memory),
        profile["engine"] or (profile["command"] or ["-"])[0],
        profile["weights"].get("default", ",".join(profile["weights"].values())) or "-",
        ",".join(model["aliases"]) or "-",
    ]
