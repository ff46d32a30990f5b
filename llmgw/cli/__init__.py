"""The command line: parse, build, call, exit code. One file a group of verbs; what is decided is decided elsewhere.

The verbs import what they need when they run, and a line that names a verb loads that one alone, so that `status` stays
quick (P10).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Literal

import typer

from llmgw import __version__

#: Verb -> the file that has it, in the order of the help.
VERBS = {
    "up": "box",
    "down": "box",
    "adopt": "adopt",
    "status": "status",
    "wake": "wake",
    "wait": "wait",
    "logs": "follow",
    "events": "follow",
    "stop": "stop",
    "drain": "drain",
    "undrain": "drain",
    "pause": "operate",
    "resume": "operate",
    "confirm": "operate",
    "clear": "clear",
    "forget": "stop",
    "catalog": "catalog",
    "key": "key",
    "token": "token",
    "import": "bring",
    "init": "init",
    "control": "daemons",
    "agent": "daemons",
    "gateway": "daemons",
    "doctor": "doctor",
    "version": "about",
}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"llmgw {__version__}")
        raise typer.Exit


def whole(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    _color: Annotated[
        Literal["auto", "always", "never"],
        typer.Option("--color", help="Colour; NO_COLOR is honoured too."),
    ] = "auto",
    _pin: Annotated[
        list[str] | None,
        typer.Option(
            "--pin",
            metavar="sha256:HEX",
            help="Hash of control's certificate, as `llmgw token` prints it. [env: LLMGW_PIN]",
        ),
    ] = None,
    _ca: Annotated[
        str | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            help="Authorities that vouch for control's certificate. [env: LLMGW_CA] "
            "[default: the system's]",
        ),
    ] = None,
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a bug.")] = False,
) -> None:
    """Options of every command; the door moves them to the front, so that they may stand anywhere in the line."""
    # Read where every setting is read (`config.trust`), by whichever verb it is.
    given = {"LLMGW_PIN": ",".join(_pin or ()), "LLMGW_CA": _ca or ""}
    os.environ.update({name: value for name, value in given.items() if value})


def program(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """The whole command line, or as much of it as these verbs need."""
    app = typer.Typer(
        name="llmgw",
        help="Runs LLM engines on a few machines: adopt, place, drain, serve. Restart anything, any time.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(whole)
    for verb in verbs:
        module = import_module(f"llmgw.cli.{VERBS[verb]}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb)
        else:
            app.command(verb)(getattr(module, verb))
    return app
