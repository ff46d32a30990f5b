"""`llmgw catalog check|schema|show`: what the catalog file says, without any fleet. May not write anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw import config
from llmgw.cli import options
from llmgw.errors import EXIT_DIFFERENCE, EXIT_OK, CatalogError

app = typer.Typer(
    help="Check and show the catalog file.", rich_markup_mode=None, no_args_is_help=True
)

File = Annotated[
    Path | None,
    typer.Argument(
        help="Catalog file, or a directory of *.yaml [default: /etc/llmgw/catalog.yaml, else ./catalog.yaml]"
    ),
]


def path_of(file: Path | None) -> Path:
    return file or Path(config.Given({}).text("catalog", str(config.catalog_path())))


@app.command()
def check(
    file: File = None,
    output: options.Output = "table",
) -> int:
    """Say whether the catalog is valid: every problem as FILE:LINE:COL, exit 1 if there is one."""
    import json

    from llmgw import catalog as catalogs

    problems: tuple[str, ...] = ()
    models = profiles = 0
    try:
        loaded = catalogs.load(path_of(file))
        models, profiles = len(loaded.models), sum(len(m.profiles) for m in loaded.models.values())
    except CatalogError as e:
        problems = e.problems
    if output == "json":
        found = {
            "valid": not problems,
            "problems": list(problems),
            "models": models,
            "profiles": profiles,
        }
        typer.echo(json.dumps({"schema": "llmgw.catalog-check/1", **found}, indent=2))
    elif problems:
        typer.echo("\n".join(problems))
    else:
        typer.echo(f"ok: {_count(models, 'model')}, {_count(profiles, 'profile')}")
    return EXIT_DIFFERENCE if problems else EXIT_OK


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


@app.command()
def schema() -> None:
    """Print the JSON Schema of the catalog file, for editors."""
    import json

    from llmgw import catalog as catalogs

    typer.echo(json.dumps(catalogs.schema(), indent=2))


@app.command()
def show(
    context: typer.Context,
    file: File = None,
    output: options.Output = "table",
) -> None:
    """Show the catalog as it is understood: merged with its defaults, secrets left out."""
    import json

    from llmgw import catalog as catalogs
    from llmgw.render import catalog as words
    from llmgw.render.page import look, show

    document = catalogs.show(catalogs.load(path_of(file)))
    if output == "json":
        typer.echo(json.dumps(document, indent=2))
    else:
        show(words.page(document), look(context.find_root().params["_color"]))
