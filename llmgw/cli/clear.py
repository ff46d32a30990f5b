"""`llmgw clear`: let a model that was given up start again. May not decide whether it should."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgw import config
from llmgw.cli import ask, names, options
from llmgw.cli.sure import named


def clear(
    name: Annotated[
        str,
        typer.Argument(
            metavar="REPLICA|MODEL", help="What to clear.", autocompletion=names.running
        ),
    ],
    control: options.ControlUrl = None,
) -> None:
    """Let a model that was given up start again.

    llmgw clear qwen3-coder forgets its failures, and the GPU memory that its runs held.
    """
    from urllib.parse import quote

    from llmgw.render.page import size

    named(name, "REPLICA|MODEL")
    peer = ask.first(ask.control(config.Given({"control": control})))
    answer = ask.post(peer, f"/api/v1/replicas/{quote(name, safe='')}/clear")
    model = (answer or {}).get("model", name)
    # An older control does not count them.
    learned = (answer or {}).get("learned") or 0
    if (answer or {}).get("in_catalog") is False:
        done = "forgotten" if (answer or {}).get("failures") else "it had no failures"
        typer.echo(f"{model} is not in the catalog any more; {done}")
    elif (answer or {}).get("failures") == 0 and not learned:
        typer.echo(f"{model} had no failures")
    elif (answer or {}).get("failures") == 0:
        typer.echo(f"{model} had no failures; forgot that it held {size(learned)} of a GPU")
    else:
        typer.echo(f"cleared {model}: it may start again")
