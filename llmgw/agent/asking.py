"""One look at one engine: does it answer, is the listener its own, where is its model, how far is its load.

Answers for: the `Probed` that a `Probe` is answered with. May not judge it (`core.supervise.health` does), nor touch a
process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

import structlog
from msgspec.structs import replace

from llmgw.agent import compute, ports, probe
from llmgw.agent.devices import Devices
from llmgw.agent.logs import Logs
from llmgw.agent.placeholders import host_of, redacted
from llmgw.core.types.messages import LISTENS, Compute
from llmgw.core.types.node import NodeFacts, Probed
from llmgw.core.types.record import Record

log = structlog.get_logger()
#: How much of a log is read for where the model was put: llama.cpp says it early, and warns a lot before.
HEAD_BYTES = 256 * 1024
#: How much of its end for how far a load is.
END_BYTES = 8 * 1024
COMING_UP = frozenset({"starting", "loading"})


class Hands(Protocol):
    """What is needed of the performer."""

    facts: NodeFacts
    logs: Logs
    devices: Devices

    def secrets_of(self, record: Record) -> frozenset[str]: ...
    def pids_of(self, record: Record) -> Iterable[int]: ...


async def asked(hands: Hands, record: Record, *, check: bool, token: bool) -> Probed:
    start = record.start
    host = host_of(record, hands.facts)
    seen = await _answer(record, host, token=token)
    owner: Literal["", "ours", "other"] = ""
    whose, where = "", None
    if seen.outcome == "ok" and check:
        try:
            # Mostly it is the leader's own; a look at every process would make a newcomer wait.
            owner, whose = ports.owner(start.port, host, [record.pid or 0])
            if owner == "other":
                owner, whose = ports.owner(start.port, host, hands.pids_of(record))
            where = await _compute(hands, record, host)
        except (OSError, ValueError) as e:  # its log may hold anything
            log.warning("cannot see its listener or its log", shard=start.shard, error=str(e))
    elif record.state in COMING_UP:
        seen = _progress(hands.logs, record, seen)
    return Probed(
        key=record.key,
        attempt=record.attempt,
        outcome=seen.outcome,
        detail=whose or redacted(seen.detail, hands.secrets_of(record)),
        progress=seen.progress,
        owner=owner,
        compute=where,
    )


async def _answer(record: Record, host: str, *, token: bool) -> probe.Outcome:
    """A newcomer has all of `start_timeout` for its first real work: it may load or compile kernels only then."""
    start, name = record.start, record.start.served_name or record.start.model
    if start.health == LISTENS:
        return probe.listened_to(ports.listened(start.port, host))
    seen = await probe.health(host, start.port, start.health)
    newcomer = record.state in COMING_UP
    if seen.outcome == "ok" and newcomer and start.compute in compute.LOAD:
        path = compute.LOAD[start.compute]
        seen = await probe.load(host, start.port, path, name, start.start_timeout_s)
    if seen.outcome == "ok" and token:
        patience_s = start.start_timeout_s if newcomer else probe.TOKEN_TIMEOUT_S
        seen = await probe.one_token(host, start.port, name, record.api_key, patience_s)
    return seen


def _progress(logs: Logs, record: Record, seen: probe.Outcome) -> probe.Outcome:
    """Who refuses connections while it loads (vLLM), or only says that it does, may tell how far it is in its log."""
    if seen.outcome not in ("refused", "loading"):
        return seen
    try:
        part = compute.progress(record.start.compute, logs.end(record.start.shard, END_BYTES))
    except OSError as e:  # with the next probe, then
        log.warning("cannot read an engine's log", shard=record.start.shard, error=str(e))
        return seen
    return seen if part is None else probe.Outcome("loading", seen.detail, part)


async def _compute(hands: Hands, record: Record, host: str) -> Compute | None:
    """What the engine says; where it does not say the bytes, what the driver lists."""
    start = record.start
    if start.compute in compute.ASK:
        text = await probe.said(host, start.port, compute.ASK[start.compute])
    else:
        text = hands.logs.head(start.shard, HEAD_BYTES)
    where = compute.parse(start.compute, text)
    if not hands.devices.last.uses or (where is not None and where.gpu_bytes is not None):
        return where
    listed = hands.devices.bytes_of(hands.pids_of(record))
    if listed is None:
        return where
    # A log that was cut says nothing any more; what it said before is still so.
    return replace(where or record.compute or Compute(), gpu_bytes=listed)
