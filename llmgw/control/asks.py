"""A question to the writer: what is to be done in its turn, and what is answered when the pass it set off is over.

Answers for: one answer to each, also when the fold failed. It may not know what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from llmgw.errors import LlmgwError

T = TypeVar("T")


class Ask(Generic[T]):
    """Something done in the writer's turn: `fold` first, `answer` when the pass it set off is over."""

    def __init__(self, fold: Callable[[float], T], answer: Callable[[T], Any]) -> None:
        self._fold = fold
        self._answer = answer
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._folded: T | None = None
        self.failed = False

    def fail(self, error: BaseException) -> None:
        self.failed = True
        if not self.future.done():
            self.future.set_exception(error)

    def fold(self, now: float) -> bool:
        """False where it cannot be folded: that belongs to who asked."""
        try:
            self._folded = self._fold(now)
        except Exception as e:  # noqa: BLE001 - belongs to who asked
            self.fail(e)
        return not self.failed

    def answer(self) -> None:
        if self.failed:
            return
        try:
            said = self._answer(self._folded)  # type: ignore[arg-type]
        except Exception as e:  # noqa: BLE001 - belongs to who asked
            self.fail(e)
            return
        if not self.future.done():
            self.future.set_result(said)


def closing() -> LlmgwError:
    msg = "control is on its way out"
    return LlmgwError(msg, "ask again in a moment", code="closing", status=503)
