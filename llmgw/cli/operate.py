"""`llmgw pause`, `resume`, `confirm`: an operator's word to control, and what it came to. May not decide."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, names, options
from llmgw.cli.sure import say, stay

Json = dict[str, Any]


def pause(
    why: Annotated[str, typer.Option(help="A remark for whoever looks at the status.")] = "",
    control: options.ControlUrl = None,
) -> None:
    """Stop, drain and roll nothing unasked, until `resume`.

    llmgw pause --why "new rack" holds over restarts of control too. What is adopted, routed and
    started goes on, and so does `llmgw stop`.
    """
    answer = _told("pause", {"why": why} if why else {}, control)
    typer.echo(f"paused {answer['paused']}; `llmgw resume` ends it")


def resume(control: options.ControlUrl = None) -> None:
    """End a pause.

    llmgw resume; what was held back is carried out, where the guard does not ask first: llmgw status shows it.
    """
    answer = _told("resume", {}, control)
    was = answer["was"]
    typer.echo(f"resumed; it had been paused {was}" if was else "it was not paused")


def confirm(
    digest: Annotated[
        str,
        typer.Argument(
            metavar="DIGEST",
            help="As `status` or `adopt --dry-run` shows it.",
            autocompletion=names.digest,
        ),
    ],
    control: options.ControlUrl = None,
) -> None:
    """Let happen what is blocked.

    llmgw confirm sha256:9f... The digest is the one that `status` shows, or that of the whole plan; what it did not
    show stays blocked.
    """
    answer = _told("confirm", {"digest": digest}, control)
    about = f": {', '.join(answer['engines'])}" if answer["engines"] else ""
    typer.echo(f"confirmed {answer['confirmed']}{about}")
    stay(answer, answer["engines"])


def _told(verb: str, body: Json, control: str | None) -> Json:
    peer = ask.first(ask.control(config.Given({"control": control})))
    answer: Json = ask.post(peer, f"/api/v1/{verb}", body)
    if answer.get("warning"):
        say(f"a restart of control would forget it: {answer['warning']}")
    return answer
