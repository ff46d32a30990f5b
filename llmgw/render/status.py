"""The fleet (`llmgw.status/1`) in words: nodes with their GPUs, models with their replicas, and what needs attention.

Answers for: `llmgw status` on a screen, and which facts of the document are a complaint. It may not ask anybody.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator
from typing import Any

from llmgw.render import nodes as words
from llmgw.render.leader import lacking, leaders
from llmgw.render.page import Table, age, size

Json = dict[str, Any]
MODEL_HEAD = ["MODEL", "REPLICA", "NODE", "GPU", "STATE", "REQS", "IDLE UNTIL", "AGE", "WHERE"]
#: What folds on a narrow terminal: a replica is called after its model, so that each name stands there twice.
NAMES = frozenset({"MODEL", "REPLICA", "NODE"})
PLACE_HEAD = ["NODE", "PROFILE", "TAKES", "WHY"]
#: Of memory the most that it was seen to hold: on the GPU where that is most, and of the host's.
MODEL_WIDE = ["PROFILE", "GPU PEAK", "HOST PEAK", "PID", "ENDPOINT", "NOTE"]
#: Of a load; less of it says nothing of how fast it is.
LEAST_DONE = 0.05
#: A node in one of these is not heard.
AWAY = frozenset({"unreachable", "expected"})
#: A model in one of these states is as its catalog wants it.
FINE = frozenset({"ready", "loaded", "unloaded", "loading", "starting", "asleep", "stopped"})


def page(status: Json, *, name: str = "", wide: bool = False, now_s: float) -> list[Table | str]:
    """`name`: what `narrow` was asked for; `now_s` is wall time, for ages."""
    indices = {g["uuid"]: str(g["index"]) for n in status["nodes"] for g in n["gpus"] or ()}
    nodes, replicas = status["nodes"], status["replicas"]
    node_rows = [row for n in nodes for row in words.rows(n, _silent(n, status, now_s), wide=wide)]
    rows = [row for r in replicas for row in _replica(r, status, indices, wide=wide, now_s=now_s)]
    running = {r["model"] for r in replicas}
    rows += [_model(m, wide=wide) for m in status["models"] if m["name"] not in running]
    parts: list[Table | str] = []
    if node_rows:
        parts.append(Table(words.HEAD + (words.WIDE if wide else []), node_rows, NAMES))
    elif not name:
        parts.append("no node has registered")
    if rows:
        parts.append(Table(MODEL_HEAD + (MODEL_WIDE if wide else []), sorted(rows), NAMES))
    if wide:
        parts += words.others(nodes)
    places = [_place(p) for m in status["models"] for p in m.get("places") or ()]
    if places:
        parts.append(Table(PLACE_HEAD, places))
    return [*parts, *notes(status)]


def _silent(node: Json, status: Json, now_s: float) -> str:
    """For how long; of one that this control has not heard, and nobody knows since when, for how long at least."""
    since, started = _epoch(node.get("since")), _epoch(status.get("started_at"))
    if node["state"] not in AWAY or (since is None and started is None):
        return ""
    return age(now_s - since) if since is not None else f">{age(now_s - (started or now_s))}"


def _place(place: Json) -> list[str]:
    """What a node says to one more replica."""
    return [place["node"], place["profile"], place["takes"], place["why"]]


def narrow(status: Json, name: str) -> Json | None:
    """The same document with what is about one node, model, alias, replica or shard; None where nothing is."""
    replicas = [r for r in status["replicas"] if _about(r, name, status)]
    nodes = [n for n in status["nodes"] if n["node"] == name]
    models = [m for m in status["models"] if name in {m["name"], *m["aliases"]}]
    if not (replicas or nodes or models):
        return None
    ran = {r["model"] for r in replicas}
    where = {s["node"] for r in replicas for s in r["shards"]}
    names = {name, *ran, *(m["name"] for m in models), *(r["replica"] for r in replicas)}
    # Of whole names: what is said of chat-1 is not about chat, nor of box12 about box1.
    said = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, names))})(?![\w-]|\.\w)")
    warnings = status.get("warnings") or ()
    # What one agent knows is all of this box; that control is away is true of each part of it.
    alone = status.get("catalog") is None
    shards = {s["shard"] for r in replicas for s in r["shards"]}
    stops = status.get("stops_pending") or ()
    return status | {
        "nodes": nodes or [_own(n, shards) for n in status["nodes"] if n["node"] in where],
        "models": models or [m for m in status["models"] if m["name"] in ran],
        "replicas": replicas,
        "stops_pending": [s for s in stops if s["shard"] in shards],
        "warnings": [w for w in warnings if alone or said.search(w)],
    }


def _own(node: Json, shards: set[str]) -> Json:
    """A node as far as it is about these shards: of what holds its GPUs beside them only what is theirs."""
    return node | {"foreign": [f for f in node.get("foreign") or () if f.get("shard") in shards]}


def _about(replica: Json, name: str, status: Json) -> bool:
    model = next((m for m in status["models"] if m["name"] == replica["model"]), None)
    return name in {
        replica["replica"],
        replica["model"],
        *(model["aliases"] if model else ()),
    } or any(s["node"] == name or s["shard"] == name for s in replica["shards"])


def notes(status: Json) -> list[str]:
    """What is going on besides, and what needs attention; nothing when all is well."""
    said = leaders(status.get("leader") or {})
    if settling := status.get("settling"):
        waits = ", ".join(settling.get("waiting_for") or ()) or "nodes to register"
        said.append(f"settling: waiting for {waits}; nothing is started or stopped before")
    if status.get("paused"):
        said.append(
            f"paused {status['paused']}; nothing is stopped, drained or rolled but on request: "
            "llmgw resume ends it"
        )
    said += _drained(status)
    said += complaints(status)
    said += _rolls(status)
    said += [_pending(s) for s in status.get("stops_pending") or ()]
    return said


def _drained(status: Json) -> Iterator[str]:
    """An operator asked for it, so it is no complaint."""
    for node in status["nodes"]:
        name = node["node"]
        if node.get("drained"):
            left = node["engines"]
            yield f"{name} is drained {node['drained']}{_leaving(left)}; llmgw undrain {name} ends it"
        for gpu in node["gpus"] or ():
            if gpu.get("drained"):
                at = f"{name}/{gpu['index']}"
                yield (
                    f"GPU {gpu['index']} of {name} is drained {gpu['drained']}"
                    f"{_leaving(gpu['engines'])}; llmgw undrain {at} ends it"
                )


def _leaving(engines: int) -> str:
    return f", {engines} engine{'s' * (engines > 1)} still there" if engines else ", it is free"


def _pending(stop: Json) -> str:
    """What holds it back stands above, once for all of them."""
    why = str(stop.get("why") or "")
    drains = why.startswith("draining: ")
    at = f", {'at the latest ' if drains else ''}at {clock(stop['at'])}" if stop["at"] else ""
    held = ", held back" if stop.get("withheld") else ""
    return f"stop pending: {stop['shard']}, {stop['reason']}{at}{held}{': ' if why else ''}{why}"


def _rolls(status: Json) -> Iterator[str]:
    """How far a model is with what its catalog says now."""
    for model in status["models"]:
        mine = [r for r in status["replicas"] if r["model"] == model["name"]]
        old = [r for r in mine if r.get("drift") and r["state"] not in {"stopped", "failed"}]
        if old:
            new = sum(r["state"] == "ready" and not r.get("drift") for r in mine)
            yield (
                f"roll of {model['name']}: {new} of {new + len(old)} run as the catalog says now; "
                f"{old[0]['replica']}: {old[0]['drift']}"
            )


def complaints(status: Json) -> list[str]:
    """Every fact that makes `status --check` say degraded."""
    return list(_complaints(status))


def _complaints(status: Json) -> Iterator[str]:
    if status.get("blocked"):
        yield f"blocked: {_sentence(status['blocked'])}"
    yield from lacking(status.get("leader") or {})
    if error := (status.get("catalog") or {}).get("error"):
        first, *more = str(error).splitlines()
        rest = f" (and {len(more)} more)" if more else ""
        yield f"warning: the catalog on disk is not used: {first}{rest}"
    for node in status["nodes"]:
        if node["state"] not in {"ready", "draining", "drained"}:
            yield f"warning: node {node['node']} is {node['state']}{_since(node, status)}"
    warnings = list(status.get("warnings") or ())
    for model in status["models"]:
        if model["state"] not in FINE or model["ready"] < model["min"]:
            yield f"warning: {_lacking(model, _nowhere(model, warnings))}"
    for replica in status["replicas"]:
        if replica.get("breaker") == "open":
            why = f": {replica['breaker_why']}" if replica.get("breaker_why") else ""
            yield f"warning: the breaker of {replica['replica']} is open, no request goes there{why}"
    yield from (f"warning: {warning}" for warning in warnings)


def _since(node: Json, status: Json) -> str:
    if node.get("since"):
        return f" since {clock(node['since'])}"
    if node["state"] in AWAY and status.get("started_at"):
        return f", not heard since control started at {clock(status['started_at'])}"
    return ""


def _nowhere(model: Json, warnings: list[str]) -> str:
    """That it fits nowhere, where that is said of it, taken out of the others: its line says it."""
    mine = next((w for w in warnings if w.startswith(f"{model['name']} fits nowhere, ")), "")
    if mine:
        warnings.remove(mine)
    return mine.removeprefix(f"{model['name']} ")


def _lacking(model: Json, nowhere: str = "") -> str:
    name, why = model["name"], str(model.get("why") or "")
    because = nowhere.partition(": ")[2]
    if because and why.endswith(because):  # once is enough
        why = f"{why.removesuffix(because)}{nowhere}"
    elif nowhere:
        why = f"{why}; {nowhere}" if why else nowhere
    if model["state"] == "failed" and "llmgw clear" not in why:
        why = f"{why}; llmgw clear {name} lets it start again"
    # One that is loaded and answers nobody, for its node is silent, is not to be called loaded.
    state = "has" if model["state"] in FINE else f"is {model['state']},"
    said = f"model {name} {state} {model['ready']} of {max(model['min'], 1)} ready"
    return f"{said}: {why}" if why else said


def _sentence(value: object) -> str:
    return str(value.get("why") or value) if isinstance(value, dict) else str(value)


def _replica(
    replica: Json, status: Json, indices: dict[str, str], *, wide: bool, now_s: float
) -> list[list[str]]:
    model = next((m for m in status["models"] if m["name"] == replica["model"]), None)
    lead = True
    rows = []
    for shard in replica["shards"] or [{}]:
        gpus = ",".join(indices.get(u, u[:12]) for u in shard.get("gpus") or ()) or "-"
        row = [
            replica["model"],
            replica["replica"] if len(replica["shards"]) < 2 else shard["shard"],  # noqa: PLR2004
            shard.get("node") or "-",
            gpus,
            _state(replica, shard, now_s),
            _requests(replica, model) if lead else "-",
            _idle(replica, model, now_s) if lead else "-",
            age(now_s - since) if (since := _epoch(replica.get("since"))) is not None else "-",
            _where(shard),
        ]
        if wide:
            row += [
                replica["profile"],
                size(shard.get("gpu_peak")),
                size(shard.get("host_peak")),
                str(shard.get("pid") or "-"),
                (replica.get("endpoint") or "-") if lead else "-",
                _note(replica, shard),
            ]
        rows.append(row)
        lead = False
    return rows


def _state(replica: Json, shard: Json, now_s: float) -> str:
    state = str(shard.get("state") or replica["state"])
    progress = shard.get("progress")
    if progress is not None and state in {"starting", "loading"}:
        return f"{state} {progress * 100:.0f}%{_eta(replica, progress, now_s)}"
    whole = replica["state"]
    return (
        f"{state} ({whole})"
        if whole in {"assembling", "degraded", "draining"} and whole != state
        else state
    )


def _eta(replica: Json, progress: float, now_s: float) -> str:
    """If the rest goes as fast as what is done; of a beginning that says nothing."""
    since = _epoch(replica.get("since"))
    if since is None or not LEAST_DONE <= progress < 1:
        return ""
    return f" eta {age((now_s - since) * (1 - progress) / progress)}"


def _requests(replica: Json, model: Json | None) -> str:
    if replica.get("in_flight"):
        return str(replica["in_flight"])
    waiting = model["waiting"] if model else 0
    return f"{waiting}w" if waiting and replica["state"] != "ready" else "-"


def _idle(replica: Json, model: Json | None, now_s: float) -> str:
    if model is None or replica["state"] != "ready":
        return "-"
    if replica.get("in_flight"):
        return "busy"
    until = model.get("idle_until")
    at = _epoch(until)
    return f"{clock(until)} in {age(at - now_s)}" if at is not None else "never"


def _asleep(shard: Json) -> str:
    """What a sleeper gave back, as far as its driver tells."""
    there = shard.get("asleep") or {}
    if not there:
        return ""
    if not there.get("verified"):
        return "falling asleep"
    said = ((there.get("freed"), "freed"), (there.get("rest"), "still used"))
    return ", ".join(f"{size(some)} {word}" for some, word in said if some is not None)


def _where(shard: Json) -> str:
    if (shard.get("asleep") or {}).get("freed") is not None:
        return f"{size(shard['asleep']['freed'])} freed"
    compute = shard.get("compute") or {}
    if compute.get("layers_gpu") and compute.get("layers_total"):
        return f"gpu {compute['layers_gpu']}/{compute['layers_total']}"
    device = compute.get("device")
    if device:
        return str(device)
    return "-" if shard.get("gpus") else "cpu"


def _note(replica: Json, shard: Json) -> str:
    facts = [shard.get("error"), replica.get("drift"), _asleep(shard)]
    if replica.get("breaker") not in (None, "", "closed"):
        why = f": {replica['breaker_why']}" if replica.get("breaker_why") else ""
        facts.append(f"breaker {replica['breaker']}{why}")
    return "; ".join(str(f) for f in facts if f) or "-"


def _model(model: Json, *, wide: bool) -> list[str]:
    """A model that runs nowhere."""
    waiting = f"{model['waiting']}w" if model["waiting"] else "-"
    row = [model["name"], "-", "-", "-", model["state"], waiting, "-", "-", "-"]
    return [*row, *["-"] * (len(MODEL_WIDE) - 1), model.get("why") or "-"] if wide else row


def _epoch(text: str | None) -> float | None:
    """Seconds of an ISO-8601 UTC time; None for none."""
    if not text:
        return None
    try:
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def clock(text: str | None, form: str = "%H:%M:%S") -> str:
    """The time of day in this box's zone, as people compare it with their watch."""
    seconds = _epoch(text)
    return time.strftime(form, time.localtime(seconds)) if seconds is not None else "-"
