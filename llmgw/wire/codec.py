"""The codec of core values: JSON in and out, tolerant of older and newer peers (F55, F56).

Answers for decoding (missing reads as unknown, unknown fields are kept in `extra` and go back out, one unreadable shard
never spoils a report) and for the documents of contract/cli.md that both control and the CLI produce. It may not
decide.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from llmgw.core.types.messages import SHARD_STATES, Events, NodeReport, ShardReport
from llmgw.errors import LlmgwError

T = TypeVar("T")


class WireError(LlmgwError):
    """A message that cannot be understood: says which part, and what was expected there."""

    code = "bad_message"


def _wire_names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(f.encode_name for f in msgspec.structs.fields(kind)) - {"extra"}


NODE_NAMES, SHARD_NAMES = _wire_names(NodeReport), _wire_names(ShardReport)


def encode(value: Any) -> bytes:
    """JSON of any core value; reports go out with the unknown fields they came with."""
    if isinstance(value, NodeReport):
        return msgspec.json.encode(report_document(value))
    if isinstance(value, Events):
        plain = msgspec.to_builtins(value) | {"shards": [shard_document(s) for s in value.shards]}
        return msgspec.json.encode(plain)
    return msgspec.json.encode(value)


def decode(data: bytes, kind: type[T]) -> T:
    """A typed value out of JSON; `WireError` names the field. What holds shards is read as tolerantly as a report."""
    if kind is NodeReport:
        return decode_report(data)  # type: ignore[return-value]
    if kind is Events:
        return _events_of(_json(data))  # type: ignore[return-value]
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        msg = f"message refused: not a {_name(kind)}: {e}"
        raise WireError(msg) from e


def decode_report(data: bytes) -> NodeReport:
    """One inventory message (contract/http.md "Inventory")."""
    return report_of(_json(data))


def decode_reports(data: bytes) -> tuple[NodeReport, ...]:
    """A `--report` file: one inventory message or a list of them."""
    raw = _json(data)
    return tuple(report_of(r) for r in raw) if isinstance(raw, list) else (report_of(raw),)


def report_of(raw: Any) -> NodeReport:
    """A report out of plain values. An undecodable shard is listed as unknown and held, not dropped (A39)."""
    if not isinstance(raw, dict):
        msg = f"inventory refused: want an object, got {type(raw).__name__}"
        raise WireError(msg)
    fields = {k: v for k, v in raw.items() if v is not None and k in NODE_NAMES}
    shards = fields.pop("shards", [])
    if not isinstance(shards, list):
        msg = f"inventory refused: shards must be a list, got {type(shards).__name__}"
        raise WireError(msg)
    try:
        report = msgspec.convert(fields, NodeReport)
    except msgspec.ValidationError as e:
        msg = f"inventory refused: {e}"
        raise WireError(msg) from e
    if not report.node:
        msg = "inventory refused: the node has no name"
        raise WireError(msg)
    extra = {k: v for k, v in raw.items() if k not in NODE_NAMES}
    return msgspec.structs.replace(report, shards=tuple(shard_of(s) for s in shards), extra=extra)


def _events_of(raw: Any) -> Events:
    """Shards one by one: an unreadable one must not cost the others their news (A39)."""
    if not isinstance(raw, dict) or not isinstance(raw.get("shards", []), list):
        msg = "message refused: not a Events: want an object whose shards are a list"
        raise WireError(msg)
    shards = tuple(shard_of(s) for s in raw.get("shards", []))
    try:
        events = msgspec.convert({k: v for k, v in raw.items() if k != "shards"}, Events)
    except msgspec.ValidationError as e:
        msg = f"message refused: not a Events: {e}"
        raise WireError(msg) from e
    return msgspec.structs.replace(events, shards=shards)


def shard_of(raw: Any) -> ShardReport:
    """One shard, normalised: replica and rank out of the name where absent, unknown states read as `unknown`."""
    if not isinstance(raw, dict):
        return ShardReport(shard="?", state="unknown", error=f"unreadable record: {raw!r:.80}")
    name = str(raw.get("shard", "?"))
    fields = {k: v for k, v in raw.items() if v is not None and k in SHARD_NAMES}
    try:
        shard = msgspec.convert(fields, ShardReport)
    except msgspec.ValidationError as e:
        return _named(ShardReport(shard=name, state="unknown", error=f"unreadable record: {e}"))
    extra = {k: v for k, v in raw.items() if k not in SHARD_NAMES}
    state = shard.state if shard.state in SHARD_STATES else "unknown"
    return _named(msgspec.structs.replace(shard, state=state, extra=extra))


def _named(shard: ShardReport) -> ShardReport:
    replica, _, rank = shard.shard.rpartition("/")
    return msgspec.structs.replace(
        shard,
        replica=shard.replica or replica or shard.shard,
        rank=shard.rank if shard.rank is not None else int(rank) if rank.isdecimal() else 0,
    )


def report_document(report: NodeReport, *, secrets: bool = True) -> dict[str, Any]:
    """Plain values of a report; without `secrets` the keys that only `register` may carry are left out."""
    plain: dict[str, Any] = msgspec.to_builtins(report)
    plain |= plain.pop("extra")
    plain["shards"] = [shard_document(s, secrets=secrets) for s in report.shards]
    return plain


def shard_document(shard: ShardReport, *, secrets: bool = True) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(shard)
    plain |= plain.pop("extra")
    for name in ("node",) if secrets else ("node", "api_key", "served_name"):
        if not secrets or plain[name] is None:
            del plain[name]
    return plain


def shards_digest(shards: tuple[ShardReport, ...]) -> str:
    """sha256 of the sorted `shard incarnation attempt state port` lines: the heartbeat's anti-entropy."""
    lines = sorted(f"{s.shard} {s.incarnation} {s.attempt} {s.state} {s.port}" for s in shards)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        msg = f"message refused: not JSON: {e}"
        raise WireError(msg) from e


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))
