"""`llmgw drain NODE[/GPU]` and `undrain`: name what leaves, ask, have control keep it, say what follows.

Answers for: which place is meant, out of what `status` shows. It may not end anything by itself, and returns at once
unless it is to wait: what leaves is control's to see through, also after a restart.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, names, options
from llmgw.cli.news import News, held_up
from llmgw.cli.stop import ENDED
from llmgw.cli.sure import Yes, counted, named, say, sure
from llmgw.errors import LlmgwError, UnauthorisedError, UsageError

Json = dict[str, Any]
POLL_S = 0.5
Where = Annotated[
    str,
    typer.Argument(
        metavar="NODE[/GPU]",
        help="A node, or one GPU of it by its index or UUID: box1/1.",
        autocompletion=names.places,
    ),
]


def drain(
    place: Where,
    yes: Yes = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return once nothing of ours is there any more.")
    ] = False,
    control: options.ControlUrl = None,
) -> None:
    """Free a node or a GPU, and keep it free until `undrain`.

    llmgw drain box1/1 --wait returns once GPU 1 of box1 is free; it stays so over restarts. Requests in flight
    finish. What `min` wants is started elsewhere first where there is room, and stopped where not.
    """
    node, gpu = _parted(place)
    peer = ask.first(ask.control(config.Given({"control": control})))
    status: Json = ask.get(peer, "/api/v1/status")
    there = _there(status, node, gpu)
    if there:
        sure(_question(status, place, there), "Drain it?", yes=yes, otherwise=f"{place} is used on")
    answer: Json = ask.post(peer, f"/api/v1/nodes/{_quoted(node)}/drain", _body(gpu))
    typer.echo(f"{answer['where']} is drained {answer['drained']}")
    for row in answer["leaves"]:
        typer.echo(f"{row['shard']}{_pid(row)}: {row['what']}")
    _warn(answer)
    if wait:
        _until_free(peer, answer)
    else:
        end = f"llmgw undrain {place} gives it back"
        typer.echo(
            f"`llmgw status {node}` shows when it is free; {end}" if answer["leaves"] else end
        )


def undrain(place: Where, control: options.ControlUrl = None) -> None:
    """Let a drained node or GPU be used again.

    llmgw undrain box1/1. GPUs that were drained on their own stay so when their node is given back.
    """
    node, gpu = _parted(place)
    peer = ask.first(ask.control(config.Given({"control": control})))
    answer: Json = ask.post(peer, f"/api/v1/nodes/{_quoted(node)}/undrain", _body(gpu))
    where, was = answer["where"], answer["was"]
    again = f"{where} may be used again; it had been drained {was}"
    typer.echo(again if was else f"{where} was not drained")
    for row in answer.get("leaves") or ():  # an older control does not name them
        typer.echo(f"{row['shard']}{_pid(row)}: {row['what']}")
    if answer["still"]:
        typer.echo(f"still drained: {', '.join(answer['still'])}")
    _warn(answer)


def _parted(place: str) -> tuple[str, str]:
    named(place, "NODE[/GPU]")
    node, slash, gpu = place.partition("/")
    if slash and not gpu.strip():
        # A script's `box1/$GPU` with nothing in it would take the whole box.
        msg = f"{place} names no GPU behind the slash"
        raise UsageError(msg, f"write {node} for the whole node, or a GPU of it like {node}/0")
    return node, gpu


def _quoted(node: str) -> str:
    from urllib.parse import quote

    return quote(node, safe="")


def _body(gpu: str) -> Json:
    return {"gpu": gpu} if gpu else {}


def _pid(row: Json) -> str:
    return f" (pid {row['pid']})" if row.get("pid") else ""


def _there(status: Json, node: str, gpu: str) -> list[tuple[Json, Json]]:
    """What runs there. A place that is unknown here is control's to refuse, with the nearest name."""
    gpus = [g for n in status["nodes"] if n["node"] == node for g in n["gpus"] or ()]
    number = gpu.lower().removeprefix("gpu")
    uuids = {
        g["uuid"] for g in gpus if gpu.lower() == g["uuid"].lower() or str(g["index"]) == number
    }
    return [
        (r, s)
        for r in status["replicas"]
        for s in r["shards"]
        if s["node"] == node
        and s["state"] not in ENDED
        and (not gpu or uuids.intersection(s["gpus"]))
    ]


def _question(status: Json, place: str, there: list[tuple[Json, Json]]) -> str:
    """A group goes as a whole, so its other shards are named too."""
    going = {r["incarnation"] for r, _ in there}
    whole = [s for r in status["replicas"] if r["incarnation"] in going for s in r["shards"]]
    places = ", ".join(f"{s['shard']} on {s['node']}{_pid(s)}" for s in whole)
    least = {m["name"]: m["min"] for m in status["models"]}
    moves = sorted({r["model"] for r, _ in there if least.get(r["model"])})
    start = "starts" if len(moves) == 1 else "start"
    first = f"; {', '.join(moves)} {start} elsewhere first where there is room" if moves else ""
    done = "once requests in flight are done"
    return f"this stops {counted(len(whole))} to free {place}, {done}: {places}{first}"


def _until_free(peer: ask.Peer, answer: Json) -> None:
    """Until nothing is there; a control that restarts meanwhile is waited for."""
    node, gpu = answer["node"], answer["gpu"] or ""
    news = News()
    while True:
        try:
            status: Json = ask.get(peer, "/api/v1/status")
        except UnauthorisedError:
            raise  # asking again helps nobody
        except LlmgwError as e:
            news.say(e.message)
        else:
            left = _there(status, node, gpu)
            if not left:
                typer.echo(f"{answer['where']} is free")
                return
            news.say(_left(status, node, [s["shard"] for _, s in left]))
        time.sleep(POLL_S)


def _left(status: Json, node: str, shards: list[str]) -> str:
    """What holds it up: "" where nothing but requests that end does."""
    silent = any(n["node"] == node and n.get("state") == "unreachable" for n in status["nodes"])
    away = f"; {node} does not answer, and nobody but its agent can end them" if silent else ""
    held = f"{held_up(status, frozenset(shards))}{away}"
    return f"still there: {', '.join(shards)}{held}" if held else ""


def _warn(answer: Json) -> None:
    if answer.get("warning"):
        say(f"a restart of control would forget it: {answer['warning']}")
