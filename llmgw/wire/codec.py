"""The codec of core values: JSON in and out, tolerant of older and newer peers (F55, F56).

Answers for decoding (missing reads as unknown, unknown fields are kept in `extra` and go back out, one unreadable shard
never spoils a report) and for the documents of contract/cli.md that both control and the CLI produce. It may not
decide.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from llmgw.core.types.messages import EXTRA, SHARD_STATES, Events, NodeReport, ShardReport
from llmgw.errors import LlmgwError

T = TypeVar("T")


class WireError(LlmgwError):
    """A message that cannot be understood: says which part, and what was expected there."""

    code = "bad_message"


def _wire_names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(f.encode_name for f in msgspec.structs.fields(kind)) - {EXTRA}


#: Ranks are few; names are those of contract/catalog.md, for they become paths and keys.
RANKS = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_STATES = frozenset(SHARD_STATES)
_report = msgspec.json.Decoder(NodeReport)
#: Lengths of a time that agents of ours write, and of none.
_PLAIN_TIMES = (len("2026-01-01T00:00:00Z"), 0)
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
    """One inventory message (contract/http.md "Inventory").

    Typed in one go where it holds nothing but what this version knows; else field by field, five times as slow.
    """
    if b"\\" not in data and data.isascii():
        try:
            report = _report.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return report_of(_json(data))
        if (report.shards or b'"shards"' in data) and _whole(report):
            return report
    return report_of(_json(data))


def _whole(report: NodeReport) -> bool:
    """Nothing in it is to be put right."""
    for shard in report.shards:
        rank = shard.rank
        if rank is None or not 0 <= rank < RANKS or not shard.replica or shard.state not in _STATES:
            return False
        if len(shard.started_at) not in _PLAIN_TIMES or shard.started_at[-1:] not in ("", "Z"):
            return False
    return _NAME.fullmatch(report.node) is not None


def decode_reports(data: bytes) -> tuple[NodeReport, ...]:
    """A `--report` file: one inventory message or a list of them.

    One that does not say what runs is that of an agent which cannot tell yet: its node counts as silent (A13, A55).
    """
    raw = _json(data)
    return tuple(_saved(r) for r in (raw if isinstance(raw, list) else [raw]))


def _saved(raw: Any) -> NodeReport:
    if isinstance(raw, dict) and raw.get("shards") is None:
        raw = raw | {"shards": [], "reattached": False}
    return report_of(raw)


def report_of(raw: Any) -> NodeReport:
    """A report out of plain values. An undecodable shard is listed as unknown and held, not dropped (A39)."""
    if not isinstance(raw, dict):
        msg = f"inventory refused: want an object, got {type(raw).__name__}"
        raise WireError(msg)
    fields = {k: v for k, v in raw.items() if v is not None and k in NODE_NAMES}
    shards = fields.pop("shards", None)
    report = _converted(fields, NodeReport, "inventory refused")
    if not _NAME.fullmatch(report.node):
        msg = f"inventory refused: {report.node!r:.80} is no name of a node"
        raise WireError(
            msg, "a letter or digit, then up to 62 letters, digits, dots, dashes and underscores"
        )
    if not isinstance(shards, list):
        got = "none" if shards is None else type(shards).__name__
        msg = f"inventory refused: shards must be a list, got {got}"
        raise WireError(msg, "[] says that nothing runs; unsaid would forget all that does (A42)")
    extra = {k: v for k, v in raw.items() if k not in NODE_NAMES}
    return msgspec.structs.replace(report, shards=tuple(shard_of(s) for s in shards), extra=extra)


def _events_of(raw: Any) -> Events:
    """Shards one by one: an unreadable one must not cost the others their news (A39)."""
    if not isinstance(raw, dict) or not isinstance(raw.get("shards"), list | None):
        msg = "message refused: not a Events: want an object whose shards are a list"
        raise WireError(msg)
    fields = {k: v for k, v in raw.items() if v is not None}
    shards = tuple(shard_of(s) for s in fields.pop("shards", []))
    events = _converted(fields, Events, "message refused: not a Events")
    return msgspec.structs.replace(events, shards=shards)


def _converted(fields: dict[str, Any], kind: type[T], refused: str) -> T:
    """Devices and strangers that cannot be read are unknown (F59): they cost no engine its news."""
    first: msgspec.ValidationError | None = None
    for unread in ((), ("gpus",), ("foreign",), ("gpus", "foreign")):
        try:
            return msgspec.convert({k: v for k, v in fields.items() if k not in unread}, kind)
        except msgspec.ValidationError as e:
            first = first or e
    msg = f"{refused}: {first}"
    raise WireError(msg) from first


def shard_of(raw: Any) -> ShardReport:
    """One shard, normalised: replica and rank out of the name where absent, unknown states read as `unknown`."""
    if not isinstance(raw, dict):
        nameless = ShardReport(shard="?", state="unknown", error=f"unreadable record: {raw!r:.80}")
        return _named(nameless)
    name = str(raw.get("shard", "?"))
    fields = {k: v for k, v in raw.items() if v is not None and k in SHARD_NAMES}
    try:
        shard = msgspec.convert(fields, ShardReport)
        _said_plainly(shard)
    except (msgspec.ValidationError, ValueError) as e:
        return _named(_legible(fields, name, e))
    extra = {k: v for k, v in raw.items() if k not in SHARD_NAMES}
    state = shard.state if shard.state in _STATES else "unknown"
    since = _utc(shard.started_at)
    return _named(msgspec.structs.replace(shard, state=state, started_at=since, extra=extra))


def _legible(fields: dict[str, Any], name: str, error: Exception) -> ShardReport:
    """What can be read of it, held as unknown: its GPUs and its model count though its port is nonsense (A30, A39)."""
    kept: dict[str, Any] = {}
    for key, value in fields.items():
        try:
            _said_plainly(msgspec.convert({"shard": "?", key: value}, ShardReport))
        except (msgspec.ValidationError, ValueError):
            continue
        kept[key] = value
    kept["shard"] = "".join(c if c.isprintable() else "?" for c in name)
    shard = msgspec.convert(kept, ShardReport)
    words = f"unreadable record: {error}"
    since = _utc(shard.started_at)
    return msgspec.structs.replace(shard, state="unknown", error=words, started_at=since)


def _utc(said: str) -> str:
    """A time as agents of ours write it; "" for what is none (A25: unknown, so it counts as youngest)."""
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        return ""
    if at.tzinfo is None:
        return ""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _said_plainly(shard: ShardReport) -> None:
    """Names are keys, and stand in tables on terminals: what no terminal prints is no name."""
    for what in ("shard", "replica", "incarnation", "model", "profile", "pool", "fabric"):
        if not getattr(shard, what).isprintable():
            msg = f"its {what} holds what cannot be printed"
            raise ValueError(msg)


def _named(shard: ShardReport) -> ShardReport:
    """Replica and rank out of the name where they are absent; an impossible rank makes a record unreadable."""
    replica, _, said = shard.shard.rpartition("/")
    rank = shard.rank
    if rank is None:
        rank = int(said) if said.isdecimal() and len(said) < len(str(RANKS)) else 0
    if not 0 <= rank < RANKS:
        error = f"unreadable record: rank {rank} is none"
        shard = msgspec.structs.replace(shard, state="unknown", error=error)
        rank = 0
    named = shard.replica or replica or shard.shard
    return msgspec.structs.replace(shard, replica=named, rank=rank)


def report_document(report: NodeReport, *, secrets: bool = True) -> dict[str, Any]:
    """Plain values of a report; without `secrets` the keys that only `register` may carry are left out."""
    plain: dict[str, Any] = msgspec.to_builtins(report)
    plain |= plain.pop(EXTRA)
    plain["shards"] = [shard_document(s, secrets=secrets) for s in report.shards]
    return plain


def shard_document(shard: ShardReport, *, secrets: bool = True) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(shard)
    plain |= plain.pop(EXTRA)
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
