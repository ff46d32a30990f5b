"""Nodes of a status in words: one line a GPU, and who else is on it. It may not ask anybody."""

from __future__ import annotations

from typing import Any

from llmgw.render.page import Table, size

Json = dict[str, Any]
HEAD = ["NODE", "STATE", "GPU", "MEMORY", "POWER", "ENGINES"]
WIDE = ["FREE", "RESERVED", "FOREIGN", "DRAWS", "LINK", "DRIVER", "VERSION"]
OTHERS = ["NODE", "GPU", "PID", "PORT", "MEMORY", "NOT OURS"]
GIB = 1 << 30


def rows(node: Json, silent: str, *, wide: bool) -> list[list[str]]:
    """One line a GPU; a node without any is one line. `silent`: for how long, "" for one that answers."""
    power = _of(node.get("power_w"), node.get("power_budget_w"), "W", "{:.0f}")
    first = [node["node"], f"{node['state']} {silent}".rstrip()]
    found = []
    for gpu in node["gpus"] or [None]:
        device = f"{gpu['index']} {_short(gpu['name'])}{_health(gpu)}".strip() if gpu else "-"
        memory = _of(gpu["used"] / GIB, gpu["memory"] / GIB, "GiB", "{:.1f}") if gpu else "-"
        row = [*first, device, memory, power, str(node["engines"])]
        if wide:
            row += [*_about(gpu or {}), node.get("version") or "-"]
        found.append(row)
        first, power = ["", ""], ""
    for row in found[1:]:
        row[5] = ""
    return found


def others(nodes: list[Json]) -> list[Table]:
    """Processes on GPUs, and engines that listen, which are not ours (A70)."""
    found = [
        [
            node["node"],
            _index(node, process),
            str(process["pid"]),
            str(process.get("port") or "-"),
            size(process["memory"]) if process.get("gpu") else "-",
            f"{process['command']}{_more(process)}",
        ]
        for node in nodes
        for process in node.get("foreign") or ()
    ]
    return [Table(OTHERS, found)] if found else []


def _index(node: Json, process: Json) -> str:
    index = {g["uuid"]: str(g["index"]) for g in node["gpus"] or ()}
    return index.get(process.get("gpu") or "", process.get("gpu") or "-")


def _more(process: Json) -> str:
    shard = process.get("shard")
    why = process.get("why")
    return f" ({shard}, beyond what it was given)" if shard else f" ({why})" if why else ""


def _about(gpu: Json) -> list[str]:
    free = gpu["memory"] - gpu["used"] if gpu else None
    return [
        size(free),
        size(gpu.get("reserved")),
        size(gpu.get("foreign") or None),
        _of(gpu.get("power_w"), gpu.get("power_limit_w"), "W", "{:.0f}"),
        gpu.get("link") or "-",
        gpu.get("driver") or "-",
    ]


def _health(gpu: Json) -> str:
    """What is wrong with it is among the warnings."""
    if gpu.get("lost"):
        return " (lost)"
    if gpu.get("drained"):
        return " (draining)" if gpu["engines"] else " (drained)"
    return "" if gpu.get("healthy", True) else " (not healthy)"


def _short(name: str) -> str:
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def _of(used: float | None, whole: float | None, unit: str, form: str) -> str:
    if used is None and whole is None:
        return "-"
    shown = [form.format(v) if v is not None else "-" for v in (used, whole)]
    return f"{'/'.join(shown)} {unit}"
