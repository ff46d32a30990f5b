"""`llmgw events` and `llmgw logs`: what happened and what engines say, once or as it comes.

Answers for: going on over a restart of control without a gap and without a line twice. Ctrl-C detaches and stops
nothing. May not change anything.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, names, options, stream
from llmgw.cli.sure import named, say
from llmgw.errors import EXIT_OK, LlmgwError, UnreachableError

Json = dict[str, Any]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
]
HEAD = ("AT", "KIND", "ABOUT", "NODE", "WHY")
#: Between two tries to reach a control that restarts.
AGAIN_S = 1.0
#: So many lines tell where a log broke off.
MARK_LINES = 20
TAIL_BYTES = 64 * 1024


def events(
    context: typer.Context,
    follow: Follow = False,
    last: Annotated[
        int, typer.Option("--last", "-n", min=0, help="Only so many of those there are; 0: all.")
    ] = 0,
    output: options.Output = "table",
    control: options.ControlUrl = None,
) -> int:
    """Show what was decided and what happened, each with its reason.

    llmgw events -n 20 shows the newest; llmgw events -f goes on; with -o json that is JSON Lines.
    """
    import json

    from llmgw.render.page import Table, look, show

    peers = ask.control(config.Given({"control": control}))
    peer = ask.first(peers)
    found: list[Json] = ask.get(peer, "/api/v1/events")["events"]
    shown = found[-last:] if last else found
    seen = look(context.find_root().params["_color"])
    rows = [_row(e, short=seen.terminal) for e in shown]
    if output == "table":
        show([Table(HEAD, rows)], seen)
    elif follow:
        for event in shown:
            _line(json.dumps(event))
    else:
        sys.stdout.write(json.dumps({"schema": "llmgw.events/1", "events": shown}, indent=2) + "\n")
    if follow:
        widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
        for event in _events(peers, found[-1]["id"] if found else 0):
            if output == "json":
                _line(json.dumps(event))
            else:
                row = _row(event, short=seen.terminal)
                widths = [max(w, len(cell)) for w, cell in zip(widths, row, strict=True)]
                show([Table((), [_under(widths, row)])], seen)
    return EXIT_OK


def _row(event: Json, *, short: bool) -> tuple[str, ...]:
    """`ABOUT` is the narrowest that it names: a shard, a replica or a model. `short`: in this box's time."""
    from llmgw.render.status import clock

    about = next((event[key] for key in ("shard", "replica", "model") if event.get(key)), "-")
    at = clock(event["at"], "%m-%d %H:%M:%S") if short else event["at"]
    return (at, event["kind"], about, event.get("node") or "-", event["why"])


def _under(widths: list[int], row: tuple[str, ...]) -> list[str]:
    """A row by itself, in the columns of those above it."""
    *cells, why = row
    return [*(cell.ljust(w) for cell, w in zip(cells, widths, strict=False)), why]


def _line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _events(peers: tuple[ask.Peer, ...], after: int) -> Iterator[Json]:
    """Those after this one, for ever. Ids go on over a restart; a lost inventory begins them anew."""
    import json

    away = _Away()
    while True:
        try:
            peer = ask.first(peers)
            there = ask.get(peer, "/api/v1/events")["events"]
            if there and there[-1]["id"] < after:
                after = 0
            path = f"/api/v1/events?follow=1&after={after}"
            for text in stream.lines(peer, path, wait_s=None, heard=away.over):
                event = json.loads(text)
                after = event["id"]
                yield event
        except UnreachableError as e:
            away.say(e)
        time.sleep(AGAIN_S)


class _Away:
    """Says once, not with every try, that nobody answers."""

    def __init__(self) -> None:
        self.heard = self._said = False

    def over(self) -> None:
        self.heard, self._said = True, False

    def say(self, error: UnreachableError) -> None:
        if not self._said:
            say(f"{error.message}; going on when it answers")
        self._said = True


def logs(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="REPLICA[/RANK]",
            help="Whose log; a model with one replica will do.",
            autocompletion=names.running,
        ),
    ],
    follow: Follow = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the attempt before: why it ended.")
    ] = False,
    tail: Annotated[
        int, typer.Option(min=0, help="At most so many bytes of its end.", show_default=True)
    ] = TAIL_BYTES,
    output: options.Output = "table",
    control: options.ControlUrl = None,
) -> int:
    """Show what an engine wrote, without secrets.

    llmgw logs qwen3-coder-7k2 --previous says why it ended. -f goes on over restarts of control and of the engine;
    with -o json that is JSON Lines.
    """
    import json

    from llmgw.render.page import quoted

    named(name, "REPLICA[/RANK]")
    given = config.Given({"control": control})
    source = _Source(given, name)
    whole = source.lines(f"previous={int(previous)}&tail={tail}", wait_s=ask.TIMEOUT_S)
    if output == "json" and not follow:
        found = list(whole)
        document = {"schema": "llmgw.logs/1", "shard": source.shard, "lines": found}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return EXIT_OK
    for text in whole if previous or not follow else _followed(source, tail):
        _line(
            json.dumps({"shard": source.shard, "line": text}) if output == "json" else quoted(text)
        )
    return EXIT_OK


def _followed(source: _Source, tail: int) -> Iterator[str]:
    """What is there and what comes, for ever; who has answered once is waited for, also before the first line."""
    seen: deque[str] = deque(maxlen=MARK_LINES)
    while True:
        try:
            for text in _onwards(source, list(seen), tail):
                seen.append(text)
                yield text
        except UnreachableError as e:
            if not source.away.heard:
                raise
            source.away.say(e)
        time.sleep(AGAIN_S)


def _onwards(source: _Source, mark: list[str], tail: int) -> Iterator[str]:
    """What comes behind the lines that were shown last; all of it where the log has them no more."""
    lines = source.lines(f"follow=1&tail={tail}", wait_s=None)
    if mark and _within(mark, list(source.lines(f"tail={tail}", wait_s=ask.TIMEOUT_S))):
        last: deque[str] = deque(maxlen=len(mark))
        for text in lines:
            last.append(text)
            if list(last) == mark:
                break
    yield from lines


def _within(mark: list[str], lines: list[str]) -> bool:
    return any(lines[i : i + len(mark)] == mark for i in range(len(lines) - len(mark) + 1))


class _Source:
    """Control; and this box's agent for engines whose agent only this box can ask."""

    def __init__(self, given: config.Given, name: str) -> None:
        self._name = name
        self.shard = name if self._whole else f"{name}/0"
        self.away = _Away()
        self._known: list[str] = []  # to control, which does not know this one
        self._peers = ask.control(given)
        self._agent = ask.agent(given.text("agent", config.agent_url()))

    def lines(self, asked: str, *, wait_s: float | None) -> Iterator[str]:
        try:
            peer = ask.first(self._peers)
            self.shard = self._shard(peer)
            yield from self._of(peer, "/api/v1/logs", asked, wait_s)
        except LlmgwError as e:
            if not isinstance(e, UnreachableError) and e.code != "no_log_here":
                raise
            try:
                yield from self._of(self._agent, "/v1/logs", asked, wait_s)
            except UnreachableError:
                raise e from None
            except LlmgwError as no:
                if isinstance(e, UnreachableError) and no.code == "not_found":
                    # This box alone cannot tell that no other has it.
                    msg = f"{e.message}; {no.message}"
                    raise UnreachableError(msg, no.hint) from None
                raise (self._nobody() if no.code == "not_found" and self._known else no) from None

    def _of(self, peer: ask.Peer, path: str, asked: str, wait_s: float | None) -> Iterator[str]:
        path = f"{path}/{_path(self.shard)}?{asked}"
        return stream.lines(peer, path, wait_s=wait_s, heard=self.away.over)

    @property
    def _whole(self) -> bool:
        """It names a rank, too."""
        return self._name.rpartition("/")[2].isdecimal() and "/" in self._name

    def _shard(self, peer: ask.Peer) -> str:
        """A replica's name, with its rank; a model's stands for its one replica."""
        if self._whole:
            return self._name
        found = ask.get(peer, "/api/v1/status")
        mine = sorted(r["replica"] for r in found["replicas"] if self._name == r["replica"])
        model: Json = next(
            (m for m in found["models"] if self._name in (m["name"], *m["aliases"])), {}
        )
        if model and not mine:
            mine = sorted(r["replica"] for r in found["replicas"] if r["model"] == model["name"])
            if len(mine) != 1:
                raise _not_one(found, model, self._name, mine)
        if not mine:
            self._known = [n for m in found["models"] for n in (m["name"], *m["aliases"])]
            self._known += [r["replica"] for r in found["replicas"]]
        return f"{mine[0] if mine else self._name}/0"

    def _nobody(self) -> LlmgwError:
        from llmgw.core.helps import ENDED, SHOWN
        from llmgw.core.names import unknown

        return unknown("model or replica", self._name, self._known, f"{SHOWN}; {ENDED}")


def _not_one(found: Json, model: Json, name: str, mine: list[str]) -> LlmgwError:
    from llmgw.core import helps

    if mine:
        return LlmgwError(
            f"{name} has {len(mine)} replicas", f"name one: {', '.join(mine)}; {helps.ENDED}"
        )
    why = str(model.get("why") or "")
    confirm, paused = str(found.get("confirm") or ""), bool(found.get("paused"))
    hint = helps.ready(model["name"], model["state"], why, confirm=confirm, paused=paused)
    msg = f"nothing of {name} runs{': ' if why else ''}{why}"
    return LlmgwError(msg, f"{helps.ENDED}{'; ' if hint else ''}{hint}")


def _path(shard: str) -> str:
    from urllib.parse import quote

    return quote(shard, safe="/")
