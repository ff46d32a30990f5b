"""What every lease answers: who leads, under which epoch, until when; and what is raised where it cannot be had."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from llmgw.config import pinned
from llmgw.errors import LlmgwError


class LeaseLostError(LlmgwError):
    """Somebody else may lead now: stop at once, a fresh process starts anew (F25)."""

    code = "lease_lost"


class NotYetError(LlmgwError):
    """The lease is ours, an epoch that is high enough is asked for beside the writer: try again when it wakes."""

    code = "not_yet"
    status = 503


class Holder(Struct, frozen=True):
    """A control that leads, as others find it. `url` "": not known; `epoch` 0: not known.

    Where it speaks TLS its pin is part of the URL, as `config.pinned` takes it apart.
    """

    name: str
    url: str = ""
    epoch: int = 0

    @property
    def place(self) -> str:
        """The URL for people."""
        return pinned(self.url)[0]


class Told(ABC):
    """Of every lease: what others are told of us. It may come before the lease is ours, and be another later."""

    _about = Holder("")

    @property
    def about(self) -> Holder:
        return self._about

    @about.setter
    def about(self, told: Holder) -> None:
        self._about = told
        self._tell(told)

    @abstractmethod
    def _tell(self, told: Holder) -> None:
        """Others, where the lease is ours."""


class Epochs(Protocol):
    """The durable memory of the highest epoch used here."""

    def epoch(self) -> int: ...
    def write_epoch(self, epoch: int, leader_uuid: str) -> None: ...


class Lease(Protocol):
    """Nothing here waits for anybody, but for the two coroutines, which run beside the writer.

    `id`: which lease it is of all there are; `problem`: why it cannot be made sure of
    right now, for `status`; `holder`: who leads, as far as is known, None for nobody and for ourselves; `about`: what
    others are told of us while we lead.
    """

    name: str
    id: str
    problem: str
    holder: Holder | None
    about: Holder

    @property
    def held(self) -> bool:
        """Ours, and the time to act in is not over."""

    @property
    def intent(self) -> bytes:
        """What the leader before us left for whoever leads next; b"" where nothing was, or a file keeps it."""

    def acquire(self, leader_uuid: str, above: int) -> int:
        """A new epoch, higher than any used here and than `above`, durable before it is returned.

        NotYetError where it has to be asked for first.
        """

    def renew(self) -> None:
        """LeaseLostError when it is not ours any more."""

    def deadline(self, now: float) -> float | None:
        """Time on the clock of `now` to stop acting at; None where holding on is enough."""

    def publish(self, written: Callable[[], bytes]) -> None:
        """Leave this for whoever leads next; not asked for where a file has it."""

    async def left(self) -> None:
        """Until what was published is where the next leader finds it, or it is not to be had in time."""

    async def rise(self, above: int) -> None:
        """See to it that the next `acquire` has an epoch above this one, where it can be had."""

    async def run(self, wake: Callable[[], None], seen: Callable[[], int]) -> None:
        """Get it and keep it, until cancelled; `wake` when it has come or gone, `seen`: the highest epoch heard of."""

    def release(self) -> None: ...
