"""`llmgw wait MODEL --for ready|stopped`: for scripts that go on once a model is up, or gone. May not wake it."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Literal

import typer

from llmgw import config
from llmgw.cli import ask, names, options
from llmgw.cli.sure import named, say
from llmgw.errors import EXIT_DIFFERENCE, EXIT_OK, LlmgwError, UnreachableError, UsageError

Json = dict[str, Any]
TICK_S = 0.3
#: States of a replica that serves nobody any more.
OVER = frozenset({"stopped", "failed"})


def wait(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model, alias or replica.", autocompletion=names.running
        ),
    ],
    until: Annotated[
        Literal["ready", "stopped"], typer.Option("--for", help="What to wait for.")
    ] = "ready",
    timeout: Annotated[str, typer.Option(help="How long at most, like 90s or 5m.")] = "5m",
    output: options.Output = "table",
    control: options.ControlUrl = None,
) -> int:
    """Wait until a model is ready, or until nothing of it runs.

    llmgw wake chat && llmgw wait chat --for ready --timeout 5m. It wakes nothing, and Ctrl-C stops nothing.
    Exit 1: it was not so in time, or cannot be.
    """
    import json

    from llmgw.catalog import parse_duration

    named(name, "MODEL")
    limit_s = parse_duration(timeout)
    if limit_s is None:
        msg = f"--timeout {timeout}: a wait needs an end"
        raise UsageError(msg, "write it like 90s or 5m")
    peers = ask.control(config.Given({"control": control}))
    end = time.monotonic() + limit_s
    told = ""
    while True:
        found = _status(peers, end, patient=bool(told))
        done, failed, state = _look(found, name, until)
        if done or failed or time.monotonic() >= end:
            break
        if sys.stderr.isatty() and state != told:
            say(state)
        told = state
        time.sleep(TICK_S)
    if output == "json":
        document = {
            "schema": "llmgw.wait/1",
            "name": name,
            "for": until,
            "reached": done,
            "state": state,
        }
        sys.stdout.write(json.dumps(document) + "\n")
    if done:
        return EXIT_OK
    late = "" if failed else f" after {timeout}"
    hint = _helps(found, name, until, state)
    say(f"{name} is not {until}{late}: {state}{'; ' if hint else ''}{hint}")
    return EXIT_DIFFERENCE


def _helps(found: Json, name: str, until: str, said: str) -> str:
    """The verb for what is in the way just now."""
    from llmgw.core import helps

    confirm, paused = str(found.get("confirm") or ""), bool(found.get("paused"))
    model, replicas = _named(found, name)
    running = frozenset(str(r["state"]) for r in replicas if r["state"] not in OVER)
    if until == "stopped":
        return helps.stopped(name, running, confirm=confirm, paused=paused)
    state = str(model.get("state")) if model else "loading" if running else "unloaded"
    why = f"{said}; {model.get('why') or ''}"
    of = str(model["name"]) if model else name
    return helps.ready(of, state, why, confirm=confirm, paused=paused)


def _status(peers: tuple[ask.Peer, ...], end: float, *, patient: bool) -> Json:
    """A control that restarts meanwhile does not end the wait; one that was never there does."""
    while True:
        try:
            found: Json = ask.get(ask.first(peers), "/api/v1/status")
        except UnreachableError:
            if not patient or time.monotonic() >= end:
                raise
            time.sleep(TICK_S)
            continue
        return found


def _look(found: Json, name: str, until: str) -> tuple[bool, bool, str]:
    """Whether it is so, whether it will not be without somebody's help, and the state in words."""
    model, replicas = _named(found, name)
    if not model and not replicas:
        if until == "stopped" and "-" in name:
            return True, False, "it is gone"
        raise _unknown(found, name)
    running = [r for r in replicas if r["state"] not in OVER]
    if until == "stopped":
        return not running, False, _said(running) or "nothing of it runs"
    ready = [r for r in running if r["state"] == "ready"]
    gave_up = model.get("state") == "failed"
    return (
        bool(ready),
        gave_up and not ready,
        _said(running) or str(model.get("why") or model.get("state")),
    )


def _unknown(found: Json, name: str) -> LlmgwError:
    from llmgw.core.helps import SHOWN
    from llmgw.core.names import unknown

    known = [m["name"] for m in found["models"]] + [r["replica"] for r in found["replicas"]]
    return unknown("model or replica", name, known, SHOWN)


def _named(found: Json, name: str) -> tuple[Json, list[Json]]:
    """The model of that name or alias, {} where there is none, and its replicas; or the one replica."""
    model: Json = next((m for m in found["models"] if name in (m["name"], *m["aliases"])), {})
    key, value = ("model", model["name"]) if model else ("replica", name)
    return model, [r for r in found["replicas"] if r[key] == value]


def _said(replicas: list[Json]) -> str:
    return ", ".join(f"{r['replica']} is {r['state']}" for r in replicas)
