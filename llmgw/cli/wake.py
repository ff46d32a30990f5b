"""`llmgw wake`: have an on-demand model up before anybody asks, or see what that would take. May not decide."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, names, options
from llmgw.cli.sure import named, say
from llmgw.errors import EXIT_DIFFERENCE, EXIT_OK

#: What becomes of it, in words: as it is decided, and as it would be.
WORDS = {
    "ready": ("is up", "is up"),
    "loading": ("is on its way", "is on its way"),
    "starts": ("starts", "would start"),
    "waits": ("waits", "would wait"),
    "settling": ("waits", "would wait"),
    "failed": ("is not started", "would not be started"),
    "no_room": ("has no room", "would have no room"),
}
#: It is on its way, and nothing says yet that it gets there.
UNSURE = frozenset({"starts", "loading", "waits", "settling"})
#: It will not come up by itself.
HOPELESS = frozenset({"failed", "no_room"})
Json = dict[str, Any]


def wake(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model or one of its aliases.", autocompletion=names.models
        ),
    ],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show where it would go and who would go for it; no more."),
    ] = False,
    output: options.Output = "table",
    control: options.ControlUrl = None,
) -> int:
    """Load an on-demand model, as if a request had come for it.

    llmgw wake qwen3-coder --dry-run says where it would go and who would go for it. It returns at once. Idle models
    make room; busy ones do not, as nobody waits yet. One that is up gets a whole idle timeout more. Exit 1: it
    failed, or nothing makes room for it.
    """
    import json
    from urllib.parse import quote

    named(name, "MODEL")
    peer = ask.first(ask.control(config.Given({"control": control})))
    body: Json = {"dry_run": True} if dry_run else {}
    answer: Json = ask.post(peer, f"/api/v1/models/{quote(name, safe='')}/wake", body)
    if output == "json":
        typer.echo(json.dumps(answer, indent=2))
    else:
        for line in lines(answer):
            typer.echo(line)
        if answer["state"] in UNSURE and not dry_run:
            say(f"`llmgw wait {answer['model']}` returns once it is up, or says why it is not")
    if answer.get("warning"):
        say(f"a restart of control would forget it: {answer['warning']}")
    return EXIT_DIFFERENCE if answer["state"] in HOPELESS else EXIT_OK


def lines(answer: Json) -> list[str]:
    """One line for the decision, one for each place, one for whoever goes before it."""
    said = WORDS.get(answer["state"], (answer["state"],) * 2)[answer["dry_run"]]
    found = [f"{answer['model']} {said}: {answer['why']}"]
    when = {
        "now": "would be stopped" if answer["dry_run"] else "is stopped",
        "ends": "is on its way out",
        "later": "goes before it",
    }
    found += [
        f"  {row['replica']} {when.get(row['when'], row['when'])}: {row['why']}"
        for row in answer["evicts"]
    ]
    if answer["evicts"]:
        found += [f"  then {answer['profile']} on {_where(place)}" for place in answer["places"]]
    return found


def _where(place: Json) -> str:
    gpus = [str(g["uuid"] if g["index"] is None else g["index"]) for g in place["gpus"]]
    return f"{place['node']} {'GPU ' + ', '.join(gpus) if gpus else 'cpu'}"
