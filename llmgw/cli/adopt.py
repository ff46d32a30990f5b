"""`llmgw adopt`: what a restart of control would do to every engine (--dry-run), or let it be done now.

Answers for: where the picture comes from, in the order report files, running control, agents (A54). May not judge it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, options
from llmgw.errors import UnreachableError, UsageError

Json = dict[str, Any]


def adopt(
    context: typer.Context,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show; change nothing anywhere.")
    ] = False,
    catalog: Annotated[
        Path | None, typer.Option(help="Judge by this catalog instead of the one in use.")
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(help="Judge these inventories instead of asking. May be repeated."),
    ] = None,
    inventory: options.Inventory = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Judge the rest when a node does not answer.")
    ] = False,
    control: options.ControlUrl = None,
    output: options.Output = "table",
) -> int:
    """Show engine by engine what a restart of control would do, or have the fleet surveyed now.

    Exit 0: nothing to do. 1: something would change. 3: a node did not answer.
    """
    given = config.Given({"inventory": inventory, "catalog": catalog, "control": control})
    if report:
        document = _from_files(given, report, dry_run=dry_run, allow_partial=allow_partial)
    elif dry_run:
        document = _from_fleet(given, catalog, allow_partial=allow_partial)
    else:
        if catalog or inventory:
            msg = "without --dry-run or --report adopt asks the running control, with its own catalog and inventory"
            raise UsageError(msg, "add --dry-run, or leave --catalog and --inventory out")
        body = {"allow_partial": allow_partial}
        peer = ask.first(ask.control(given))
        document = ask.post(peer, "/api/v1/adopt", body, timeout_s=ask.LONG_S)
    if output == "json":
        import json

        typer.echo(json.dumps(document, indent=2))
    else:
        from llmgw.render import plan as words
        from llmgw.render.page import look, show

        show(words.page(document), look(context.find_root().params["_color"]))
    return int(document["exit_code"])


def _from_files(
    given: config.Given, files: list[Path], *, dry_run: bool, allow_partial: bool
) -> Json:
    from llmgw import catalog as catalogs
    from llmgw.cli import survey
    from llmgw.control import store
    from llmgw.core.reconcile.fresh import after_settling

    asked = given.text("inventory", "")
    if not dry_run and not asked:
        msg = "adopt --report writes what it sees to an inventory file, and none was named"
        raise UsageError(msg, "add --inventory FILE, or --dry-run to write nothing")
    path = Path(asked) if asked else config.inventory_path()
    catalog = catalogs.load(Path(given.text("catalog", str(config.catalog_path()))))
    found = survey.from_files(files)
    state = after_settling(catalog, store.read_memory(path, warn=_say), found.reports)
    document = survey.plan(state, found, source="file", allow_partial=allow_partial)
    if not dry_run:
        # One that is still re-attaching may lack what it runs: the picture stays as it was (A13).
        store.apply_reports(path, [r for r in found.reports if r.reattached])
    return document


def _from_fleet(given: config.Given, catalog: Path | None, *, allow_partial: bool) -> Json:
    """The running control; the agents where none answers."""
    try:
        return _from_control(given, catalog, allow_partial=allow_partial)
    except UnreachableError as e:
        no_control = e
    from llmgw import catalog as catalogs
    from llmgw.cli import survey
    from llmgw.control import store
    from llmgw.core.reconcile.fresh import after_settling

    path = Path(given.text("inventory", str(config.inventory_path())))
    memory = store.read_memory(path, warn=_say)
    try:
        found = survey.from_agents(memory, given.text("agent", config.AGENT_URL))
    except UnreachableError as e:
        message = f"{no_control.message}; {e.message}"
        raise UnreachableError(message, no_control.hint) from e
    _say(f"{no_control.message}; asked the agents")
    for note in found.notes:
        _say(note)
    loaded = catalogs.load(Path(given.text("catalog", str(config.catalog_path()))))
    state = after_settling(loaded, memory, found.reports)
    return survey.plan(state, found, source="agents", allow_partial=allow_partial)


def _from_control(given: config.Given, catalog: Path | None, *, allow_partial: bool) -> Json:
    query = "?allow_partial=1" if allow_partial else ""
    peer = ask.first(ask.control(given))
    if catalog is None:
        found = ask.get(peer, f"/api/v1/plan{query}", timeout_s=ask.LONG_S)
    else:
        from llmgw import catalog as catalogs

        sources = catalogs.read_source(catalog)
        catalogs.load_sources(sources)  # its problems are said here, with the file's own name
        body = {"catalog": sources}
        found = ask.post(peer, f"/api/v1/plan{query}", body, timeout_s=ask.LONG_S)
    document: Json = found
    return document


def _say(text: str) -> None:
    print(f"llmgw: {text}", file=sys.stderr)  # noqa: T201
