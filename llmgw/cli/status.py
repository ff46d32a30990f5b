"""`llmgw status`: the fleet as control sees it; with control away, what this box's agent knows.

Answers for: whom to ask, and the exit code. Imports neither httpx, rich nor msgspec for a plain answer (P10).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from llmgw import config
from llmgw.cli import ask, names, options
from llmgw.cli.local import status_of
from llmgw.cli.news import about
from llmgw.cli.sure import say
from llmgw.errors import (
    EXIT_DIFFERENCE,
    EXIT_OK,
    EXIT_UNKNOWN,
    LlmgwError,
    UnreachableError,
    UsageError,
)

WATCH_S = 2.0
CLEAR = "\x1b[H\x1b[J"
Json = dict[str, Any]


def status(
    context: typer.Context,
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Only this node, model, alias or replica.",
            autocompletion=names.anything,
        ),
    ] = "",
    output: Annotated[
        Literal["table", "wide", "json"], typer.Option("-o", "--output", help="Form of the answer.")
    ] = "table",
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Go on until Ctrl-C: redrawn every 2 s; through a pipe rows that changed, or JSON Lines.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Quiet when all is well; else one line and exit 1.")
    ] = False,
    control: options.ControlUrl = None,
) -> int:
    """Show nodes, GPUs, models and replicas.

    llmgw status qwen3-coder -o wide shows one model and where it could go. llmgw status --check is for cron. Exit
    3: only this box's agent answered (at LLMGW_AGENT, default http://127.0.0.1:8802), or nobody.
    """
    given = config.Given({"control": control})
    color = context.find_root().params["_color"]
    if check and watch:
        msg = "--check answers once, and --watch goes on"
        raise UsageError(msg, "leave one of them out; cron calls --check again by itself")
    if check:
        return _check(given, name, output)
    if not watch:
        found, code = _fetch(given, name)
        _print(found, name, output, color)
        return code
    found, _ = _fetch(given, name)
    _watch(given, found, name, output, color)
    return EXIT_OK


def _watch(given: config.Given, found: Json, name: str, output: str, color: str) -> None:
    """For ever. A control that restarts meanwhile does not end it: the last picture stays, and is said to be that."""
    import json
    import time

    from llmgw.render.page import age, look

    heard_s = time.time()  # noqa: TID251 - ages on a screen are wall time
    rows, away = _Rows(heard_s), ""
    while True:
        if look(color).terminal:
            # Below the picture: what stderr had said would go with the next one.
            old_s = time.time() - heard_s  # noqa: TID251
            last = f"llmgw: {away}; this picture is {age(old_s)} old" if away else ""
            sys.stdout.write(CLEAR)
            _print(found, name, output, color, last)
        elif not away and output == "json":
            sys.stdout.write(json.dumps(_narrowed(found, name)) + "\n")  # a stream is JSON Lines
            sys.stdout.flush()
        elif not away:
            rows.append(_narrowed(found, name), name, wide=output == "wide")
        time.sleep(WATCH_S)
        try:
            found, away = _fetch(given, name)[0], ""
            heard_s = time.time()  # noqa: TID251
        except UnreachableError as e:
            if not away and not look(color).terminal:
                say(f"{e.message}; going on when it answers")
            away = e.message


def _fetch(given: config.Given, name: str = "") -> tuple[Json, int]:
    """The status and the exit code that its source deserves; of a model called so also where it could go."""
    from urllib.parse import quote

    path = f"/api/v1/status?places={quote(name, safe='')}" if name else "/api/v1/status"
    away = UnreachableError("no control was named")
    for peer in ask.control(given):
        try:
            found: Json = ask.get(peer, path)
        except UnreachableError as e:
            away = e
            continue
        return found, EXIT_OK
    try:
        report: Json = ask.get(ask.agent(given.text("agent", config.agent_url())), "/v1/inventory")
    except UnreachableError as e:
        message = f"{away.message}; {e.message}"
        hint = away.hint if away.code == "tls" else _both_away(given)
        raise UnreachableError(message, hint) from e
    found = status_of(report, away.message)
    if name and _narrow(found, name) is None:
        # This box alone cannot tell that there is none.
        message = f"{away.message}; {report['node']} runs nothing called {name!r}"
        raise UnreachableError(message, away.hint)
    return found, EXIT_UNKNOWN


def _both_away(given: config.Given) -> str:
    """Engines need neither, and who looks has either not begun or lost both."""
    if not Path(given.text("catalog", str(config.catalog_path()))).exists():
        return (
            "`llmgw init` writes a first catalog and `llmgw up` starts all on this box; "
            f"{ask.ELSEWHERE}"
        )
    return (
        "engines go on without them; `llmgw adopt --dry-run` shows what a start would do, `llmgw up` "
        f"(or the services) starts both; {ask.ELSEWHERE}"
    )


def _print(found: Json, name: str, output: str, color: str, last: str = "") -> None:
    """`last`: a line below it on a terminal."""
    import json
    import time

    from llmgw.render import status as words
    from llmgw.render.page import look, show

    shown = _narrowed(found, name)
    if output == "json":
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        now_s = time.time()  # noqa: TID251 - ages on a screen are wall time
        page = words.page(shown, name=name, wide=output == "wide", now_s=now_s)
        show([*page, *([last] if last else [])], look(color))


def _narrow(found: Json, name: str) -> Json | None:
    from llmgw.render.status import narrow

    return narrow(found, name)


def _narrowed(found: Json, name: str) -> Json:
    shown = _narrow(found, name) if name else found
    if shown is None:
        raise _unknown(found, name)
    return shown


def _unknown(found: Json, name: str) -> LlmgwError:
    from llmgw.core.helps import SHOWN
    from llmgw.core.names import unknown

    known = sorted({m["name"] for m in found["models"]} | {n["node"] for n in found["nodes"]})
    known += sorted(r["replica"] for r in found["replicas"])
    return unknown("node, model or replica", name, known, SHOWN)


class _Rows:
    """What a pipe gets of a watch: all of it once, then the rows in which more than an age has changed."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._last: set[str] = set()

    def append(self, shown: Json, name: str, *, wide: bool) -> None:
        import time

        from llmgw.render.page import plain
        from llmgw.render.status import page

        now_s = time.time()  # noqa: TID251 - ages on a screen are wall time
        told, aged = (
            plain(page(shown, name=name, wide=wide, now_s=at)).splitlines()
            for at in (self._began_s, now_s)
        )
        keys = [about(" ".join(line.split())) for line in told]
        new = [line for key, line in zip(keys, aged, strict=True) if key not in self._last]
        sys.stdout.write("".join(f"{line}\n" for line in new))
        sys.stdout.flush()
        self._last = set(keys)


def _check(given: config.Given, name: str, output: str) -> int:
    """For cron: nothing when well, one line when not."""
    import json

    from llmgw.render import status as words

    found, code = _fetch(given, name)
    found = _narrowed(found, name)
    wrong = words.complaints(found)
    if output == "json":
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    elif wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        sys.stdout.write(f"degraded: {wrong[0].removeprefix('warning: ')}{more}\n")
    return code or (EXIT_DIFFERENCE if wrong else EXIT_OK)
