"""What a reading of this node's GPUs is, whichever driver it came from. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from typing_extensions import override

from llmgw.agent.gpu.xid import Xid
from llmgw.core.types.messages import Gpu


class Link(NamedTuple):
    """A PCIe link; None or 0 where it is not told."""

    generation: int | None = None
    width: int | None = None

    @override
    def __str__(self) -> str:
        return f"gen{self.generation} x{self.width}"


def linked(now: Link, most: Link) -> str:
    """As people read it: "gen1 x8 of gen4 x16"; an idle card is slower to save power, and is as wide as ever."""
    if not all(now):
        return ""
    return f"{now} of {most}" if all(most) else str(now)


class Use(NamedTuple):
    """A process that computes on a GPU; `memory_bytes` 0 where the driver does not tell."""

    pid: int
    gpu: str
    memory_bytes: int


class Reading(NamedTuple):
    """`measured`: `gpus` and `uses` come from a driver, so freed memory can be seen to come back.

    `blind`: GPUs of which even the driver does not tell how much memory is in use. `error`: why `gpus` is None.
    """

    gpus: tuple[Gpu, ...] | None
    uses: tuple[Use, ...] = ()
    measured: bool = False
    blind: frozenset[str] = frozenset()
    error: str = ""


class Found(NamedTuple):
    """What one driver tells. `retired`: GPUs that are no longer there because somebody arranged it so (MIG).

    `xids`: errors that it told since it was last asked; `asks`: what it wants done for a GPU, by uuid.
    """

    gpus: tuple[Gpu, ...] = ()
    uses: tuple[Use, ...] = ()
    blind: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()
    xids: tuple[Xid, ...] = ()
    asks: Mapping[str, int] = {}
