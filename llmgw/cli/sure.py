"""The question before something ends: what it is, asked on a terminal, refused without one (contract/cli.md).

May not decide what needs asking.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from llmgw.errors import LlmgwError, UsageError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def sure(what: str, question: str, *, yes: bool, otherwise: str) -> None:
    """`otherwise`: how things are after a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        msg = f"{what}; not asked, because stdin is not a terminal"
        raise UsageError(msg, "add --yes to mean it")
    # Not typer's: its prompt puts a blank on stdout, which belongs to results.
    print(f"{what}\n{question} [y/N]: ", end="", file=sys.stderr, flush=True)  # noqa: T201
    answer = sys.stdin.readline()
    if not answer:
        raise typer.Abort
    if answer.strip().lower() not in {"y", "yes"}:
        msg = f"not confirmed, {otherwise}"
        raise LlmgwError(msg)


def named(name: str, what: str) -> None:
    """An empty name, as of a variable that is not set, is nobody's."""
    if not name.strip():
        msg = f"{what} is empty"
        raise UsageError(msg, "`llmgw status` shows the names")


def say(text: str) -> None:
    print(f"llmgw: {text}", file=sys.stderr)  # noqa: T201


def stay(answer: dict[str, Any], names: Sequence[str]) -> None:
    """A yes does not end a pause: who has given it would wait for what does not come (A48)."""
    if answer.get("paused"):
        who = ", ".join(names) or "what would end"
        word = "stays" if len(names) <= 1 else "stay"
        typer.echo(f"paused: {who} {word} until `llmgw resume`")


def counted(count: int, thing: str = "engine") -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
