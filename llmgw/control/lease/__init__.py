"""Who leads: the right to decide and to command, held under a new epoch at every acquisition (F33, design.md 5).

`file` is a flock beside the inventory and the epoch in it: one host. `etcd` is a key in an etcd that is there already,
for several hosts; no election or quorum of our own. Both have the same verbs (`base.Lease`). May not decide what a
leader does; one that cannot be had is an error, one that is lost ends the process.
"""

from __future__ import annotations

from pathlib import Path

from llmgw.control.lease.base import Epochs, Holder, Lease, LeaseLostError, NotYetError
from llmgw.control.lease.file import FileLease
from llmgw.control.lease.locks import Flock
from llmgw.control.lease.spec import Store, check, store

__all__ = [
    "Epochs",
    "FileLease",
    "Flock",
    "Holder",
    "Lease",
    "LeaseLostError",
    "NotYetError",
    "Store",
    "check",
    "lease",
    "store",
]


def lease(spec: str, inventory: Path, epochs: Epochs, *, standby: bool = False) -> Lease:
    """`standby`: of a file that another holds, wait for it; of an etcd that goes without saying."""
    where = check(spec)
    if where is None:
        return FileLease(inventory, epochs, standby=standby)
    # httpx is not for those that only read the inventory (P10).
    from llmgw.control.lease.etcd import EtcdLease  # noqa: PLC0415

    return EtcdLease(where, epochs)
