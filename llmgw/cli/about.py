"""`llmgw version`: what this program is and runs on, for bug reports. May not ask the network."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from llmgw import __version__


def version(
    output: Annotated[
        Literal["text", "json"], typer.Option("-o", "--output", help="Form of the answer.")
    ] = "text",
) -> None:
    """Print the version of llmgw, of Python and of the system.

    llmgw version -o json for a script; llmgw --version is quicker.
    """
    import json
    import platform

    facts = {
        "schema": "llmgw.version/1",
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    if output == "json":
        typer.echo(json.dumps(facts, indent=2))
    else:
        typer.echo(f"llmgw {__version__} (Python {facts['python']}, {facts['system']})")
