"""`llmgw catalog check|schema|show`: what the catalog file says, without any fleet; `apply` has control use it.

May not write anything: control writes its own file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, options
from llmgw.cli.sure import Yes, counted, stay, sure
from llmgw.errors import EXIT_DIFFERENCE, EXIT_OK, CatalogError, UsageError

app = typer.Typer(
    help="Check, show and apply the catalog file.", rich_markup_mode=None, no_args_is_help=True
)

#: Whoever is asked: the leader's, by its picture and its file, is the one that is applied.
PLAN = "/api/v1/plan?leader=1"

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
    """Say whether the catalog is valid.

    llmgw catalog check catalog.yaml names every problem as FILE:LINE:COL; exit 1 if there is one.
    """
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
        typer.echo(f"ok: {counted(models, 'model')}, {counted(profiles, 'profile')}")
    return EXIT_DIFFERENCE if problems else EXIT_OK


@app.command()
def schema() -> None:
    """Print the JSON Schema of the catalog file, for editors.

    llmgw catalog schema > catalog.schema.json, beside the catalog; its first line names it.
    """
    import json

    from llmgw import catalog as catalogs

    typer.echo(json.dumps(catalogs.schema(), indent=2))


@app.command()
def show(
    context: typer.Context,
    file: File = None,
    output: options.Output = "table",
) -> None:
    """Show the catalog as it is understood.

    llmgw catalog show -o json: merged with its defaults, secrets left out.
    """
    import json

    from llmgw import catalog as catalogs
    from llmgw.render import catalog as words
    from llmgw.render.page import look, show

    document = catalogs.show(catalogs.load(path_of(file)))
    if output == "json":
        typer.echo(json.dumps(document, indent=2))
    else:
        show(words.page(document), look(context.find_root().params["_color"]))


@app.command()
def apply(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="What control's own file becomes; without it that file is read again."),
    ] = None,
    yes: Yes = False,
    control: options.ControlUrl = None,
) -> None:
    """Have control use a catalog, after showing what it would do.

    llmgw catalog apply new.yaml shows the changes and the plan, and asks where engines would be disturbed. A yes is
    one to all that was shown: the guard against mass stops does not ask again. The old file is kept as .bak.
    """
    from llmgw.render import plan as words
    from llmgw.render.page import look, show

    peer = ask.first(ask.control(config.Given({"control": control})))
    text = None if file is None else _text(file)
    plan = _plan(peer, text)
    show(
        [*(f"change: {c}" for c in plan["changes"]), *words.page(_said_yes(plan), changes=False)],
        look(context.find_root().params["_color"]),
    )
    body: dict[str, Any] = {}
    names: list[str] = []
    if plan["disturbs"]:
        # A roll that waits for other starts has no replica yet.
        names = sorted({a["replica"] or a["model"] for a in plan["actions"] if a["disturbs"]})
        what = f"this disturbs {counted(plan['disturbs'])}: {', '.join(names)}"
        sure(what, "Apply it?", yes=yes, otherwise="the catalog in use stays")
        body = {"digest": plan["digest"], "confirm": True}
    if text is None:
        said = ask.post(peer, "/api/v1/catalog", body, timeout_s=ask.LONG_S)
    else:
        said = ask.put(peer, "/api/v1/catalog", {"catalog": text} | body, timeout_s=ask.LONG_S)
    old = f"; the one before is kept as {said['old']}" if said.get("old") else ""
    typer.echo(f"{said['path']} is in use, {counted(len(said['changes']), 'change')}{old}")
    if names:
        stay(said, names)


def _said_yes(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan as it is after a yes, which is one to the guard too; a pause holds it back all the same."""
    why = (plan["blocked"] or {}).get("why")
    actions = [a | {"withheld": None} if a["withheld"] == why else a for a in plan["actions"]]
    return plan | {"actions": actions, "blocked": None}


def _text(file: Path) -> str:
    """A catalog without a mistake, its problems named with this file's name."""
    from llmgw import catalog as catalogs

    sources = catalogs.read_source(file)
    catalogs.load_sources(sources)
    if len(sources) != 1:
        msg = f"{file} is {len(sources)} files, and control has one"
        raise UsageError(
            msg, "copy them to control's folder, then `llmgw catalog apply` without a file"
        )
    (text,) = sources.values()
    return text


def _plan(peer: ask.Peer, text: str | None) -> dict[str, Any]:
    if text is None:
        found = ask.get(peer, PLAN, timeout_s=ask.LONG_S)
        if found["problems"]:
            raise CatalogError(tuple(found["problems"]))
    else:
        body = {"catalog": text}
        found = ask.post(peer, PLAN, body, timeout_s=ask.LONG_S, only_looks=True)
    plan: dict[str, Any] = found
    return plan
