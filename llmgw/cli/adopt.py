"""`llmgw adopt`: what a restart of control would do to every engine (--dry-run), or let it be done now.

Answers for: where the picture comes from, in the order report files, running control, agents (A54). May not judge it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, options
from llmgw.cli.sure import say
from llmgw.errors import CatalogError, UnreachableError, UsageError

if TYPE_CHECKING:
    from llmgw.cli.survey import Found
    from llmgw.core.reconcile.fresh import Memory
    from llmgw.core.types.catalog import Catalog
    from llmgw.core.types.state import State

Json = dict[str, Any]
SAVED = "or judge what agents saved: --report FILE"


def adopt(
    context: typer.Context,
    engine: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE:PID]", help="Take over this engine, which somebody started by hand."
        ),
    ] = None,
    *,
    as_: Annotated[
        str | None,
        typer.Option("--as", metavar="MODEL/PROFILE", help="With NODE:PID: what it is."),
    ] = None,
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
    """Survey the fleet now, or show what a restart of control would do.

    llmgw adopt --dry-run && systemctl restart llmgw-control restarts only where that disturbs nothing. Exit 0:
    nothing to do. 1: something would change. 3: a node did not answer. With control away the agents are asked: each
    at its own address, one on loopback at LLMGW_AGENT (default http://127.0.0.1:8802).

    NODE:PID --as MODEL/PROFILE takes over an engine that somebody started by hand: it is compared with the profile,
    fact by fact, and where all are alike it is llmgw's from then on. Nothing is restarted. Exit 1: something
    differs.
    """
    given = config.Given({"inventory": inventory, "catalog": catalog, "control": control})
    if engine is not None or as_ is not None:
        if catalog or report or inventory or allow_partial:
            msg = "NODE:PID is taken over by the running control, with its own catalog"
            raise UsageError(msg, "leave --catalog, --report, --inventory and --allow-partial out")
        document = _taken_over(given, engine or "", as_ or "", dry_run=dry_run)
        return _shown(context, document, "takeover", output)
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
    return _shown(context, document, "plan", output)


def _shown(context: typer.Context, document: Json, what: str, output: str) -> int:
    if output == "json":
        import json

        typer.echo(json.dumps(document, indent=2))
    else:
        from importlib import import_module

        from llmgw.render.page import look, show

        words = import_module(f"llmgw.render.{what}")
        show(words.page(document), look(context.find_root().params["_color"]))
        if what == "takeover" and (no := words.refusal(document)):
            raise no
    return int(document["exit_code"])


def _taken_over(given: config.Given, engine: str, wanted: str, *, dry_run: bool) -> Json:
    node, _, pid = engine.rpartition(":")
    if not node or not (pid.isascii() and pid.isdecimal()):
        msg = f"{engine!r} is not NODE:PID" if engine else "--as says what, and not which engine"
        hint = "write it as NODE:PID; `llmgw adopt --dry-run` lists engines that are not ours"
        raise UsageError(msg, hint)
    if not wanted:
        msg = f"what {engine} is to be taken over as is not said"
        hint = f"llmgw adopt {engine} --as MODEL/PROFILE; `llmgw adopt --dry-run` says which it is most like"
        raise UsageError(msg, hint)
    body = {"node": node, "pid": int(pid), "as": wanted, "dry_run": dry_run}
    peer = ask.first(ask.control(given))
    document: Json = ask.post(peer, "/api/v1/adopt", body, timeout_s=ask.LONG_S, only_looks=dry_run)
    return document


def _from_files(
    given: config.Given, files: list[Path], *, dry_run: bool, allow_partial: bool
) -> Json:
    from llmgw.cli import survey
    from llmgw.control import store
    from llmgw.wire.plan import by_last_good

    asked = given.text("inventory", "")
    if not dry_run and not asked:
        msg = "adopt --report writes what it sees to an inventory file, and none was named"
        raise UsageError(msg, "add --inventory FILE, or --dry-run to write nothing")
    path = Path(asked) if asked else config.inventory_path()
    catalog, problems = _catalog(given, path)
    found = survey.from_files(files)
    state = _state(catalog, store.read_memory(path, warn=say), found)
    document = survey.plan(state, found, source="file", allow_partial=allow_partial)
    if not dry_run:
        # One that is still re-attaching may lack what it runs: the picture stays as it was (A13).
        store.apply_reports(path, [r for r in found.reports if r.reattached])
    return by_last_good(document, problems)


def _from_fleet(given: config.Given, catalog: Path | None, *, allow_partial: bool) -> Json:
    """The running control; the agents where none answers."""
    try:
        return _from_control(given, catalog, allow_partial=allow_partial)
    except UnreachableError as e:
        no_control = e
    from llmgw.cli import survey
    from llmgw.control import store
    from llmgw.control.node_tokens import NodeTokens
    from llmgw.wire.plan import by_last_good

    asked = given.text("inventory", "")
    path = Path(asked) if asked else config.inventory_path()
    _missing(asked)
    memory = store.read_memory(path, warn=say)
    tokens = {t.node_id: t.token for t in NodeTokens(path.parent).now().values() if t.node_id}
    try:
        found = survey.from_agents(memory, given.text("agent", config.agent_url()), tokens)
    except UnreachableError as e:
        looked = "" if memory.nodes else f"; {path} remembers no node"
        message = f"{no_control.message}; {e.message}{looked}"
        raise UnreachableError(message, f"{no_control.hint}; {SAVED}") from e
    say(f"{no_control.message}; asked the agents")
    for note in found.notes:
        say(note)
    if not found.reports:
        say(f"nobody answered: this is the last picture, as {path} has it, and all of it is held")
        hint = f"start the agents with `llmgw up` or `llmgw agent` and ask again; {SAVED}"
        typer.echo(f"hint: {hint}", err=True)
    loaded, problems = _catalog(given, path)
    state = _state(loaded, memory, found)
    document = survey.plan(state, found, source="agents", allow_partial=allow_partial)
    return by_last_good(document, problems)


def _missing(named: str) -> None:
    """Where none was named it is no news that there is none; a name is a mistake more often than a new file."""
    if named and not Path(named).exists():
        say(f"there is no inventory {named}: nothing is remembered")


def _catalog(given: config.Given, inventory: Path) -> tuple[Catalog, tuple[str, ...]]:
    """What a control that starts now would use, and what is wrong with the file: a broken one falls back (F11).

    One that is named on the command line is what is asked about, so its mistakes are the answer.
    """
    from llmgw import catalog as catalogs
    from llmgw.control import store

    file = Path(given.text("catalog", str(config.catalog_path())))
    try:
        return catalogs.load(file), ()
    except CatalogError as e:
        sources = {} if given.flag("catalog") else store.read_sources(inventory)
        if not sources:
            raise
        try:
            return catalogs.load_sources(sources), e.problems
        except CatalogError:
            raise e from None


def _state(catalog: Catalog, memory: Memory, found: Found) -> State:
    """After settling, as control takes its settings from the environment; a flag of its cannot be known here."""
    from llmgw.core.reconcile.fresh import after_settling

    keep = config.Given({}).switch("keep_unknown")
    return after_settling(catalog, memory, found.reports, keep_unknown=keep)


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
        path = f"/api/v1/plan{query}"
        found = ask.post(peer, path, body, timeout_s=ask.LONG_S, only_looks=True)
    document: Json = found
    return document
