"""The command line: parse, build, call, exit code. One file a group of verbs; what is decided is decided elsewhere.

The verbs import what they need when they run, so that `status` and completion stay quick (P10).
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from llmgw import __version__
from llmgw.cli import about, adopt, box, catalog, clear, daemons, status

app = typer.Typer(
    name="llmgw",
    help="Runs LLM engines on a few machines: adopt, place, drain, serve. Restart anything, any time.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"llmgw {__version__}")
        raise typer.Exit


@app.callback()
def whole(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    _color: Annotated[
        Literal["auto", "always", "never"],
        typer.Option("--color", help="Colour; NO_COLOR is honoured too."),
    ] = "auto",
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a bug.")] = False,
) -> None:
    """Options of every command; the door reads them, so that they may stand anywhere in the line."""


app.command("up")(box.up)
app.command("down")(box.down)
app.command("adopt")(adopt.adopt)
app.command("status")(status.status)
app.add_typer(catalog.app, name="catalog")
app.command("clear")(clear.clear)
app.command("control")(daemons.control)
app.command("agent")(daemons.agent)
app.command("gateway")(daemons.gateway)
app.command("version")(about.version)
