"""Agents of another version: what they leave out of their reports, and how they take orders that name less (F55).

Today's agent with today's core, seen through an older protocol. A missing field means unknown; one below the floor is
read-only: adopted, never commanded.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from llmgw.core.types.messages import (
    PROTOCOL_FLOOR,
    Command,
    NodeReport,
    SendReport,
    ShardReport,
    Start,
)
from llmgw.core.types.record import Key

TODAY = ""
#: What each of them does not know yet.
VERSIONS = ("no-fingerprint", "no-resources", "no-incarnation", "below-floor")


def report(version: str, said: NodeReport) -> NodeReport:
    if version == TODAY:
        return said
    protocol = PROTOCOL_FLOOR - 1 if version == "below-floor" else said.protocol
    shards = tuple(shard(version, s) for s in said.shards)
    return replace(said, protocol=protocol, shards=shards)


def shard(version: str, said: ShardReport) -> ShardReport:
    match version:
        case "no-fingerprint":
            return replace(said, fingerprint="", artefact="")
        case "no-resources":
            return replace(said, resources=None, world_size=None)
        case "no-incarnation":
            return replace(said, incarnation="")
        case "below-floor":
            return replace(said, fingerprint="", artefact="", resources=None, incarnation="")
        case _:
            return said


def start(version: str, known: Start, artefact: str) -> tuple[Start, str]:
    """What control can know of it: the order, and the artefact."""
    if version in ("no-fingerprint", "below-floor"):
        return replace(known, fingerprint=""), ""
    return known, artefact


def key(version: str, of: Key) -> Key:
    return (of[0], "") if version in ("no-incarnation", "below-floor") else of


def understood(version: str, command: Command, records: Iterable[Key]) -> Command:
    """One that knows no incarnations goes by the name of the shard."""
    if version == TODAY or isinstance(command, SendReport) or command.incarnation:
        return command
    named = [inc for name, inc in records if name == command.shard]
    return replace(command, incarnation=named[-1]) if named else command
