"""All chance of one history, in streams: one fault more or less leaves the luck of everything else as it was.

So a history stays much the same while it is made smaller (`shrink.py`). Without dice there is no chance at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from typing_extensions import override

T = TypeVar("T")


class Middle(Random):
    """Always the middle and the first, so that a trace does not hang on a seed."""

    @override
    def random(self) -> float:
        return 0.5

    @override
    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[0]


class Dice:
    """`seed` None: no dice."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    @property
    def real(self) -> bool:
        return self.seed is not None

    def stream(self, *about: object) -> Random:
        """The luck of one thing; the same for the same words in the same seed."""
        words = " ".join(map(str, about))
        return Random(f"{self.seed} {words}") if self.real else Middle(0)
