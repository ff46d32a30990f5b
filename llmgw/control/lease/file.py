"""The lease of one host: a flock beside the inventory and the epoch in it. A standby waits for the flock (F17)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from typing_extensions import override

from llmgw.control.crash import crash
from llmgw.control.lease.base import Epochs, Holder, LeaseLostError, Told
from llmgw.control.lease.locks import Flock, Lock, TakenError, flock_folder
from llmgw.errors import LlmgwError

#: A standby tries so often: it leads well within a second of the leader's end.
TRY_S = 0.2
#: Who holds it is looked up so often; it costs a walk through /proc.
LOOK_S = 5.0
_HOST = ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")


class FileLease(Told):
    """Taken when made; an epoch only when asked for. The folder too is for one control: its gateway lives there.

    `standby`: where another has it, it is waited for (`run`) instead of refused.
    """

    name = "file"
    intent = b""

    def __init__(self, inventory: Path, epochs: Epochs, *, standby: bool = False) -> None:
        self.problem = ""
        self.id = _id(inventory)
        self.holder: Holder | None = None
        self.held = False
        self._inventory = Flock(inventory)
        self._folder = Lock(inventory.parent, os.O_RDONLY | os.O_DIRECTORY, flock_folder)
        self._epochs = epochs
        try:
            self._take()
        except LlmgwError as e:
            self.release()
            if not (standby and e.code == "locked"):
                raise
            self._look()
            return
        self.held = True
        crash("after_lock")

    @override
    def _tell(self, told: Holder) -> None:
        if self.held:
            self._inventory.sign(told.url, told.name)

    def _grab(self) -> None:
        if not self._folder.ours:
            with suppress(OSError):
                self._folder.take()
        self._inventory.grab()

    def _take(self) -> None:
        try:
            if not self._folder.ours:
                with suppress(OSError):
                    self._folder.take()
        except TakenError as e:
            msg = f"the folder {self._folder.path} is in use by another control, pid {e.pid}"
            hint = "end that one first, or give this one a folder of its own: --inventory DIR/FILE"
            raise LlmgwError(msg, hint, code="locked", status=409) from e
        self._inventory.take()

    def _look(self) -> None:
        """Who has it, by what he wrote beside it: pid, URL, name."""
        pid, url, name = (*self._inventory.signed(), "", "", "")[:3]
        self.holder = Holder(name or (f"pid {pid}" if pid else "another control"), url)

    async def run(self, wake: Callable[[], None], seen: Callable[[], int]) -> None:  # noqa: ARG002 - an epoch is at hand
        loop = asyncio.get_running_loop()
        look_s = 0.0
        while not self.held:
            await asyncio.sleep(TRY_S)
            try:
                self._grab()
            except TakenError:
                self._folder.drop()
            except OSError as e:
                self._folder.drop()
                self.problem = f"cannot lock the inventory: {e.strerror}"
            else:
                self.held, self.holder, self.problem = True, None, ""
                self.about = self._about
                crash("after_lock")
                wake()
                return
            if loop.time() >= look_s:
                look_s = loop.time() + LOOK_S
                self._look()

    def acquire(self, leader_uuid: str, above: int) -> int:
        epoch = 1 + max(self._epochs.epoch(), above)
        self._epochs.write_epoch(epoch, leader_uuid)
        return epoch

    async def rise(self, above: int) -> None:
        """Nothing to ask: `acquire` has every epoch."""

    def publish(self, written: Callable[[], bytes]) -> None:
        """The inventory has it all."""

    async def left(self) -> None:
        """The inventory is written in the pass itself."""

    def renew(self) -> None:
        """Somebody may have removed what we hold, or its folder. Ours again if nobody was quicker (F17).

        Where it cannot be had by anybody, on a disk that is full or read-only, what we hold is still the only one:
        losing the files ends no control. Agents obey the higher epoch, should there ever be two.
        """
        if not self.held:
            return
        if self._inventory.ours and self._folder.ours:
            self.problem = ""
            return
        crash("lock_dropped")
        try:
            self._folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take()
            self.about = self._about
        except LlmgwError as e:
            if e.code == "locked":
                msg = f"the lease is lost: {e.message}"
                raise LeaseLostError(msg, e.hint) from e
            self.problem = f"{e.message}; {e.hint}"
        except OSError as e:
            self.problem = (
                f"cannot lock the inventory: {self._folder.path}: {e.strerror}; check the folder"
            )
        else:
            self.problem = ""

    def deadline(self, now: float) -> float | None:  # noqa: ARG002 - a flock does not lapse
        return None

    def release(self) -> None:
        self._inventory.drop()
        self._folder.drop()


def _id(inventory: Path) -> str:
    """Of this file on this host: two files know nothing of each other's epochs (`two_leaders`), two controls of one do.

    Not something in the file: a standby says it before it may open that, and a copy of it elsewhere is another.
    """
    host = ""
    for name in _HOST:
        with suppress(OSError):
            host = host or Path(name).read_text().strip()
    told = f"{host} {os.path.realpath(inventory)}"
    return f"file:{sha256(told.encode()).hexdigest()[:16]}"
