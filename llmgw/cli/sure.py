"""The question before something ends: what it is, asked on a terminal, refused without one (contract/cli.md).

May not decide what needs asking.
"""

from __future__ import annotations

import sys
from typing import Annotated

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


def say(text: str) -> None:
    print(f"llmgw: {text}", file=sys.stderr)  # noqa: T201


def counted(count: int) -> str:
    return f"{count} engine{'' if count == 1 else 's'}"
