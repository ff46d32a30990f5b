"""`llmgw stop` and `forget`: name what goes, ask, have control do it, say what follows.

Answers for: which thing a name means, out of what `status` shows. It may not end anything by itself.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple

import typer

from llmgw import config
from llmgw.cli import ask, names, options
from llmgw.cli.sure import Yes, counted, named, say, sure
from llmgw.core.helps import SHOWN
from llmgw.core.names import unknown
from llmgw.errors import LlmgwError, UsageError

ENDED = frozenset({"stopped", "failed"})
#: As shards are numbered: 00 is no other way to write 0.
_RANK = re.compile("0|[1-9][0-9]{0,5}")
Json = dict[str, Any]


class Target(NamedTuple):
    """`path` of the API; `rank` where it is one shard; the shards it is about, each with its replica."""

    path: str
    rank: int | None
    shards: list[tuple[Json, Json]]


def stop(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|REPLICA|SHARD", help="What to stop.", autocompletion=names.running
        ),
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="SHARD only: at once, and what cannot be killed gives its GPUs and ports back.",
        ),
    ] = False,
    yes: Yes = False,
    control: options.ControlUrl = None,
) -> None:
    """Stop engines, once their requests in flight are done.

    llmgw stop qwen3-coder names what it would end and asks. A shard stands for its whole replica. A model with
    `min` above 0 in the catalog is started again; one on demand is woken by the next request.
    """
    named(name, "MODEL|REPLICA|SHARD")
    peer = ask.first(ask.control(config.Given({"control": control})))
    status: Json = ask.get(peer, "/api/v1/status")
    target = _meant(status, name, force=force)
    known = target.shards or target.path.startswith("models/")
    if force and target.rank is None and known:
        msg = f"--force releases one shard, and {name} is not one"
        near = target.shards[0][1]["shard"] if target.shards else "REPLICA/0"
        raise UsageError(msg, f"name the shard: llmgw stop --force {near}")
    if target.shards:
        what = _forced(target) if force else _drained(status, target)
        question = "Stop it?" if len(target.shards) == 1 else "Stop them?"
        sure(what, question, yes=yes, otherwise="nothing was stopped")
    body: Json = {} if target.rank is None else {"rank": target.rank}
    if force and body:
        body["force"] = True
    answer: Json = ask.post(peer, f"/api/v1/{target.path}/stop", body)
    if force:
        _say_forced(answer)
    else:
        _say_drained(answer, status, name)


def _meant(status: Json, name: str, *, force: bool) -> Target:
    """The narrowest thing of that name; one that is unknown here is control's to refuse, with the nearest name."""
    from urllib.parse import quote

    known = [(r, s) for r in status["replicas"] for s in r["shards"]]
    every = [(r, s) for r, s in known if s["state"] not in ENDED]
    by_shard = [
        (r, s)
        for r, s in known
        if name in (s["shard"], f"{r['incarnation']}/{s['shard'].rpartition('/')[2]}")
    ]
    if by_shard:
        head, _, rank = by_shard[0][1]["shard"].rpartition("/")
        replica = head if name == by_shard[0][1]["shard"] else by_shard[0][0]["incarnation"]
        # One that has ended stands for its replica too: the others of it are what goes.
        of = {r["incarnation"] for r, _ in by_shard}
        others = [] if force else [(r, s) for r, s in every if r["incarnation"] in of]
        live = [row for row in by_shard if row in every] or others
        return Target(f"replicas/{quote(replica, safe='')}", int(rank), live)
    by_replica = [(r, s) for r, s in every if name in (r["replica"], r["incarnation"])]
    if by_replica:
        return Target(f"replicas/{quote(name, safe='')}", None, by_replica)
    models = [m["name"] for m in status["models"] if name in (m["name"], *m["aliases"])]
    by_model = [(r, s) for r, s in every if r["model"] in (*models, name)]
    if models or by_model:
        return Target(f"models/{quote((models or [name])[0], safe='')}", None, by_model)
    head, slash, rank = name.rpartition("/")
    of = {m["name"] for m in status["models"] if head in (m["name"], *m["aliases"])}
    if of and not force:
        shards = [s["shard"] for r, s in every if r["model"] in of]
        what = "model, replica or shard"
        raise unknown(what, name, shards, SHOWN)
    if slash and _RANK.fullmatch(rank):
        return Target(f"replicas/{quote(head, safe='')}", int(rank), [])
    return Target(f"replicas/{quote(name, safe='')}", None, [])


def _whole(status: Json, target: Target) -> list[tuple[Json, Json]]:
    """Of every replica that is meant, all shards."""
    meant = {r["incarnation"] for r, _ in target.shards}
    return [(r, s) for r in status["replicas"] if r["incarnation"] in meant for s in r["shards"]]


def _place(shard: Json) -> str:
    pid = f" (pid {shard['pid']})" if shard.get("pid") else ""
    return f"{shard['shard']} on {shard['node']}{pid}"


def _drained(status: Json, target: Target) -> str:
    whole = _whole(status, target)
    places = ", ".join(_place(s) for _, s in whole)
    said = f"this stops {counted(len(whole))}, once requests in flight are done: {places}"
    going = {r["incarnation"] for r, _ in whole}
    models = {m["name"]: m for m in status["models"]}
    for name in sorted({r["model"] for r, _ in whole}):
        least = models[name]["min"] if name in models else 0
        stay = sum(
            r["model"] == name
            and r["incarnation"] not in going
            and r["state"] not in {"draining", *ENDED}
            for r in status["replicas"]
        )
        if stay < least:
            said += f"\n{_again(name, least)}"
    return said


def _again(model: str, least: int) -> str:
    return f"the catalog wants min {least} of {model}: another one is started where there is room"


def _forced(target: Target) -> str:
    places = ", ".join(_place(s) for _, s in target.shards)
    return (
        f"this stops {places} at once; what of it cannot be killed goes on, and its GPUs, memory and "
        "ports are given out all the same"
    )


def _say_drained(answer: Json, status: Json, name: str) -> None:
    if not answer["stopping"]:
        typer.echo(f"nothing of {name} runs")
    for row in answer["stopping"]:
        for shard in row["shards"]:
            first = shard["waits"] or "requests in flight finish first"
            typer.echo(f"stopping {_place(shard)}: {first}")
    for model, least in answer["wanted"].items():
        typer.echo(_again(model, least))
    asleep = {m["name"] for m in status["models"] if not m["min"]}
    for model in sorted({row["model"] for row in answer["stopping"]} & asleep):
        typer.echo(f"{model} is on demand: the next request wakes it again")
    if answer.get("warning"):
        say(f"a restart of control would forget it: {answer['warning']}")


def _say_forced(answer: Json) -> None:
    word = "sent to" if answer["sent"] else "is under way already at"
    shard = answer["forced"]
    typer.echo(
        f"the order to stop {_place(shard)} {word} its agent; `llmgw status` shows what became of it"
    )


def forget(
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE", help="A node that will not come back.", autocompletion=names.nodes
        ),
    ],
    yes: Yes = False,
    control: options.ControlUrl = None,
) -> None:
    """Remove a node that will not come back.

    llmgw forget box3: it is not waited for any more, and what it ran counts no more. If it comes back after all,
    its agent registers and its engines are adopted again.
    """
    from urllib.parse import quote

    named(node, "NODE")
    peer = ask.first(ask.control(config.Given({"control": control})))
    status: Json = ask.get(peer, "/api/v1/status")
    row = next((n for n in status["nodes"] if n["node"] == node), None)
    if row is not None:
        if row["state"] in {"ready", "read-only", "draining", "drained"}:
            msg = f"node {node} is connected and would be back at once"
            raise LlmgwError(msg, "stop its agent first", code="connected")
        sure(_dropped(status, node), "Forget it?", yes=yes, otherwise=f"{node} is kept")
    ask.post(peer, f"/api/v1/nodes/{quote(node, safe='')}/forget")
    typer.echo(f"{node} is forgotten")


def _dropped(status: Json, node: str) -> str:
    shards = [s for r in status["replicas"] for s in r["shards"] if s["node"] == node]
    places = ", ".join(_place(s) for s in shards if s["state"] not in ENDED)
    if not places:
        return f"this forgets node {node}, which is not known to run anything"
    return (
        f"this forgets node {node} and what it is believed to run: {places}; if that still runs, "
        "others may be started beside it"
    )
