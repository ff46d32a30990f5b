"""The plan (`llmgw.plan/1`) in words: one line a shard, what follows, and the summary line of contract/cli.md.

Answers for: `llmgw adopt` on a screen. It may not judge: verdicts, reasons and the exit code come in the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmgw.render.page import Table, size

HEAD = ("VERDICT", "SHARD", "NODE", "GPUS", "PORT", "STATE", "WHY")
#: What folds on a narrow terminal.
NAMES = frozenset({"SHARD", "NODE"})
#: Verdicts that leave the shard where it is, with their sign; the others are shown with what will be done about them.
STAYS = {"adopt": "=", "join": "=", "keep": "=", "terminal": "=", "hold": "?"}
#: Action -> sign.
SIGNS = {"start": "+", "stop": "-", "drain": "-", "roll": "-/+", "wait": "."}
#: Action -> what then happens to a shard that goes on for now.
ENDED = {"stop": "stopped", "drain": "drained", "roll": "rolled"}
Json = dict[str, Any]


def page(plan: Json, *, changes: bool = True) -> list[Table | str]:
    """`changes`: those of the catalog, where it is another than the one in use."""
    names = gpu_names(plan)
    ends = _ends(plan)
    rows = [_shard(s, plan, ends, names) for s in plan["shards"]]
    rows += [_silent(n) for n in plan["nodes"] if not n["answered"]]
    rows += [_foreign(f, names) for f in _strangers(plan)]
    parts: list[Table | str] = [Table(HEAD, rows, NAMES)] if rows else ["no engine runs"]
    follows = list(_follows(plan, ends, names))
    if follows:
        parts.append(Table((), follows))
    if changes:
        parts += [f"change: {sentence}" for sentence in plan.get("changes", ())]
    parts += [f"take over: {line}" for line in _takeovers(plan)]
    parts += [f"warning: {w}" for w in plan.get("warnings", ())]
    parts += _held_back(plan)
    parts.append(summary(plan, ends))
    return parts


def _held_back(plan: Json) -> list[str]:
    """Why some of it would wait for a word of the operator, once for all that do."""
    blocked = plan.get("blocked")
    why = {a.get("withheld") for a in plan["actions"]} - {None, blocked and blocked["why"]}
    said = [f"blocked: {w}" if not w.startswith("paused ") else w for w in sorted(why)]
    if blocked:
        said.append(f"blocked: {blocked['why']}; llmgw confirm {blocked['digest']} lets it happen")
    return said


def _mark(action: Json) -> str:
    """An action that is listed and not carried out for now."""
    why = action.get("withheld")
    return "" if not why else " (paused)" if why.startswith("paused ") else " (blocked)"


def gpu_names(plan: Json) -> dict[str, str]:
    """UUID -> index, as people count GPUs."""
    return {g["uuid"]: str(g["index"]) for g in plan.get("gpus", ())}


def _gpus(uuids: list[str], names: dict[str, str], *, none: str = "cpu") -> str:
    return ",".join(names.get(u, u[:12]) for u in uuids) or none


def _ends(plan: Json) -> dict[tuple[str, str], Json]:
    """(replica, incarnation) -> the stop or drain that ends it."""
    return {
        (a["replica"], _known(a.get("incarnation"))): a
        for a in plan["actions"]
        if a["action"] in {"stop", "drain"}
    }


def _end_of(shard: Json, ends: dict[tuple[str, str], Json]) -> Json | None:
    """The action that ends a shard which nothing keeps; what is forgotten has ended, it is the rest of its group."""
    if shard["verdict"] in STAYS or shard["verdict"] == "forget":
        return None
    return ends.get((shard["replica"], _known(shard["incarnation"])))


def _known(incarnation: str | None) -> str:
    """An older agent gives none; an action then names it `?MODEL/REPLICA`."""
    return "" if not incarnation or incarnation.startswith("?") else incarnation


def _not_for_long(shard: Json, plan: Json) -> str:
    """Of one that goes on for now and is ended all the same: that, and why, before anything else."""
    then = shard["then"]
    why = list(_restarts(plan, shard)) if then["action"] == "roll" else []
    why += [then["why"]] if then["why"] not in shard["why"] else []
    said = "; ".join([*why, shard["why"]])
    return f"{shard['verdict']}, then {ENDED[then['action']]}: {said}{_mark(then)}"


def _shard(
    shard: Json, plan: Json, ends: dict[tuple[str, str], Json], names: dict[str, str]
) -> list[str]:
    verdict, why = shard["verdict"], shard["why"]
    end = _end_of(shard, ends)
    if end is not None:
        why = why if why.startswith(verdict) else f"{verdict}: {why}"
        if end["due_s"] > 0:
            why += f" (in {end['due_s']:.0f} s)"
        why += _mark(end)
    elif shard.get("then"):  # a control of an older version does not say it
        why = _not_for_long(shard, plan)
    word = f"- {end['action']}" if end else f"{STAYS.get(verdict, '!')} {verdict}"
    gone = verdict == "forget"
    return [
        word,
        shard["shard"],
        shard["node"],
        _gpus(shard["gpus"], names),
        str(shard["port"] or "-"),
        "-" if gone else shard["state"],
        why,
    ]


def _silent(node: Json) -> list[str]:
    count = node["shards"]
    held = f"; {count} shard{'s' if count > 1 else ''} held" if count else ""
    why = node["error"] or "no answer"
    word = "? unasked" if why.startswith("not asked") else "? silent"
    return [word, "-", node["node"], "-", "-", "-", f"{why}{held}"]


def _strangers(plan: Json) -> list[list[Json]]:
    """The rows of processes that are not ours, those of one engine together."""
    groups: dict[tuple[str, int], list[Json]] = {}
    for f in plan.get("foreign", ()):
        groups.setdefault((f["node"], f.get("engine") or f["pid"]), []).append(f)
    return list(groups.values())


def _foreign(rows: list[Json], names: dict[str, str]) -> list[str]:
    pid = rows[0].get("engine") or rows[0]["pid"]
    own = next((f for f in rows if f["pid"] == pid), rows[0])
    words = (own.get("command") or "process").split(" ")
    program = words[0].rpartition("/")[2]
    gpus = sorted({f["gpu"] for f in rows if f.get("gpu")}, key=lambda u: names.get(u, u))
    memory = sum(f.get("memory") or 0 for f in rows)
    does = f"holds {size(memory)}" if gpus else "listens"
    return [
        "? foreign",
        f"{program} pid {pid}",
        own["node"],
        _gpus(gpus, names, none="-"),
        str(own.get("port") or "-"),
        "-",
        f"{does}{_likeness(own)}",
    ]


def _takeovers(plan: Json) -> list[str]:
    """What to type for each engine that can be taken over: on a line of its own, to be copied from any terminal."""
    return list(dict.fromkeys(f["adopt"] for f in plan.get("foreign", ()) if f.get("adopt")))


def _likeness(process: Json) -> str:
    if process.get("why"):
        return f"; {process['why']}"
    if process.get("adopt"):
        return f", matches {process['matches'].partition('/')[2]}"
    if process.get("in_the_way"):
        return f", matches {process['matches'].partition('/')[2]}; {process['in_the_way']}"
    if process.get("nearest"):
        differs = [f"{d['what']} {d['runs']} instead of {d['wanted']}" for d in process["differs"]]
        return f", is not quite {process['nearest']}: {'; '.join(differs)}; left alone"
    return "; not ours, left alone"


def _follows(
    plan: Json, ends: dict[tuple[str, str], Json], names: dict[str, str]
) -> Iterator[list[str]]:
    """What the pass does beyond the shards above."""
    shown = {id(e) for s in plan["shards"] if (e := _end_of(s, ends)) is not None}
    first = "then"
    for action in plan["actions"]:
        if id(action) in shown:
            continue
        due = f" (in {action['due_s']:.0f} s)" if action["due_s"] > 0 else ""
        sign = f"{SIGNS.get(action['action'], '!'):>3} {action['action']}"
        changed = _restarts(plan, action) if action["action"] == "roll" else ()
        why = "; ".join([*changed, action["why"]])
        yield [first, sign, _target(action, names), why + due + _mark(action)]
        first = ""


def _restarts(plan: Json, rolled: Json) -> Iterator[str]:
    """What of a rolled profile is another than in the catalog in use; the engine itself knows a fingerprint only."""
    about = f"{rolled['model']}/{rolled.get('profile')}: "
    for sentence in plan.get("changes", ()):
        if sentence.startswith(about) and sentence.endswith(" (restart)"):
            yield sentence.removeprefix(about).removesuffix(" (restart)")


def _target(action: Json, names: dict[str, str]) -> str:
    if action["action"] == "start":
        gpus = _gpus(action["gpus"], names)
        where = f"{action['node']} {gpus if gpus == 'cpu' else f'gpu {gpus}'}"
        return f"{action['model']} ({action['profile']}) on {where}"
    return str(action["replica"] or f"{action['model']} ({action['profile']})")


def summary(plan: Json, ends: dict[tuple[str, str], Json]) -> str:
    """`3 adopted, 1 stopped; 1 start.  Restart would disturb 2 engines.   digest sha256:...`."""
    counts: dict[str, int] = {}
    words = {
        "adopt": "adopted",
        "join": "adopted",
        "keep": "kept",
        "terminal": "ended",
        "hold": "held",
    }
    for shard in plan["shards"]:
        end = _end_of(shard, ends)
        word = ENDED[end["action"]] if end else words.get(shard["verdict"])
        word = word or {"forget": "forgotten"}.get(shard["verdict"], shard["verdict"])
        counts[word] = counts.get(word, 0) + 1
    folded = {id(e) for s in plan["shards"] if (e := _end_of(s, ends)) is not None}
    actions: dict[str, int] = {}
    for action in plan["actions"]:
        if id(action) not in folded:
            actions[action["action"]] = actions.get(action["action"], 0) + 1
    order = {word: i for i, word in enumerate(("adopted", "kept", "held", "stopped", "drained"))}
    words_ = sorted(counts, key=lambda w: (order.get(w, len(order)), w))
    said = ", ".join(f"{counts[word]} {word}" for word in words_) or "0 adopted"
    follows = ", ".join(f"{n} {word}" for word, n in actions.items())
    disturbs = plan["disturbs"]
    engines = "1 engine" if disturbs == 1 else f"{disturbs} engines" if disturbs else "no engine"
    line = f"{said}; {follows}." if follows else f"{said}."
    if not plan["complete"]:
        line += "  Incomplete."
    return f"{line}  Restart would disturb {engines}.   digest {plan['digest']}"
