"""An order as the loop takes it: who gave it, and what this host is like just now. May not decide about it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from llmgw.agent import ports, room
from llmgw.agent.journal import Journal
from llmgw.agent.placeholders import Filler
from llmgw.clock import Stamps
from llmgw.core.supervise.claims import PORTS
from llmgw.core.supervise.commands import intended
from llmgw.core.types.messages import Command, DrainShard, Start, StopShard
from llmgw.core.types.node import AgentState, CommandReceived
from llmgw.core.types.record import Record


def given(control: str, command: Command, extra: dict[str, Any]) -> CommandReceived:
    """`extra`: fields of it that a newer control sent (F56)."""
    return CommandReceived(
        command=command,
        control=control,
        fresh_key=secrets.token_hex(32),
        extra={"start": extra} if extra else {},
    )


def in_time(command: Command, stamps: Stamps) -> Command:
    """A stop that came too late to end what may be asked again by now lets it drain; control goes on from there."""
    if not isinstance(command, StopShard) or not command.not_after:
        return command
    if stamps.clock() <= stamps.at_s(command.not_after):
        return command
    return DrainShard(
        shard=command.shard,
        incarnation=command.incarnation,
        reason=command.reason,
        seq=command.seq,
        session=command.session,
        epoch=command.epoch,
        leader_uuid=command.leader_uuid,
    )


def looked(
    event: CommandReceived, folder: Path, filler: Callable[[Record], Filler] | None
) -> CommandReceived:
    """With what is free for a start."""
    start = event.command
    if not isinstance(start, Start):
        return event
    wanted = (start.port, *start.ports.values())
    busy = ports.busy(p for p in wanted if p in PORTS)
    return replace(event, ports_busy=busy, room=room.look_for(start, folder, filler))


def foresee(state: AgentState, event: CommandReceived, journal: Journal) -> None:
    """A start that is kept back shall not wait for the disk longer than it must, once it is its turn."""
    record = intended(state, event)
    with contextlib.suppress(OSError):  # its own write will say so
        if record is not None:
            journal.ahead(record)
