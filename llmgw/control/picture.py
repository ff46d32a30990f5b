"""Values that go into the inventory file and come out of it: the last picture, and times that survive a restart.

Answers for: monotonic seconds to wall time and back, and what of the state the fleet could not tell again. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from llmgw.control.keys import Keys
from llmgw.core import idle
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types.messages import NodeReport
from llmgw.core.types.state import Draining, Failure, Node, State
from llmgw.errors import LlmgwError
from llmgw.wire import decode_report, encode

T = TypeVar("T")
Warn = Callable[[str], None]


class Moment(NamedTuple):
    """One reading of both clocks: the file and people get wall time, the core monotonic seconds."""

    mono: float
    wall: float

    def iso(self, mono_s: float) -> str:
        at = datetime.fromtimestamp(self.wall + mono_s - self.mono, UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def seconds(self, text: str) -> float:
        """Monotonic seconds of a stored time; never in the future, so that a clock set back freezes nothing (F26)."""
        try:
            at = datetime.fromisoformat(text).timestamp()
        except ValueError:
            return self.mono
        return self.mono + min(at - self.wall, 0.0)


class Picture(Struct, frozen=True):
    """One node as last seen; `unreachable`: it was silent then, and is not waited for at the next start (A47)."""

    report: NodeReport
    unreachable: bool
    heard_at: str


class Change(Struct):
    """What one pass wants kept, in one commit. None: as it was.

    `durable`: on the disk before anything is sent; `ends`: a stop is sent of what drains, which is in the file before.
    """

    nodes: dict[str, Picture] = {}
    gone: tuple[str, ...] = ()
    draining: dict[str, Draining] | None = None
    failures: dict[str, tuple[Failure, ...]] | None = None
    sources: dict[str, str] | None = None
    keys: Keys | None = None
    paused: str | None = None
    confirmed: frozenset[str] | None = None
    cordoned: dict[tuple[str, str], str] | None = None
    woken_s: dict[str, float] | None = None
    learned: dict[str, int] | None = None
    gateways: str | None = None
    events: tuple[dict[str, Any], ...] = ()
    durable: bool = False
    ends: bool = False

    def __bool__(self) -> bool:
        given = (
            *(self.draining, self.failures, self.sources),
            *(self.keys, self.paused, self.confirmed, self.cordoned, self.woken_s, self.learned),
            self.gateways,
        )
        return bool(self.nodes or self.gone or self.events) or any(g is not None for g in given)

    def may_wait(self, known: Container[str]) -> bool:
        """Nothing is in it but lines of history and what the agents of nodes that are in the file say again."""
        rest = replace(self, nodes={}, events=(), learned=None, draining=None)
        return not (rest or self.durable or self.ends) and all(name in known for name in self.nodes)


def believed(node: Node) -> NodeReport:
    """The node's report with all shards that are thought to run there, those just placed included (work in flight)."""
    return replace(node.report, shards=tuple(s.report for s in node.shards if not s.missing))


def unreachable(state: State, node: Node) -> bool:
    """Silent, other than for not having had the time yet to register with this control."""
    if node.connected:
        return False
    return node.unreachable_before or node.lost_s is not None or not state.settling


def picture(state: State, node: Node, now: Moment) -> Picture:
    heard = node.heard_s if node.heard_s is not None else now.mono
    return Picture(believed(node), unreachable(state, node), now.iso(heard))


def memory_of(state: State, zero: float) -> Memory:
    """What a control that took over at this moment would remember; `zero` is the moment that is 0 on its clock."""
    memory = Memory(
        nodes=tuple((believed(n), unreachable(state, n)) for _, n in sorted(state.nodes.items())),
        epoch=state.epoch,
        failures=state.failures,
        draining=state.draining,
        paused=state.paused,
        confirmed=state.confirmed,
        cordoned=state.cordoned,
        woken_s=state.woken_s,
        learned=state.learned,
        gateways=idle.gateways(state),
    )
    return shifted(memory, zero)


def shifted(memory: Memory, zero: float) -> Memory:
    """The same on a clock that shows 0 at `zero`; which table showed a drain is this control's own business."""
    return replace(
        memory,
        failures={
            m: tuple(replace(f, at_s=f.at_s - zero) for f in fs)
            for m, fs in memory.failures.items()
        },
        draining={
            i: Draining(d.since_s - zero, d.reason, d.why) for i, d in memory.draining.items()
        },
        woken_s={m: at_s - zero for m, at_s in memory.woken_s.items()},
    )


# ---------------------------------------------------------------- rows: each alone, a bad one costs only itself (F20)


def node_rows(change: Change) -> Iterator[tuple[str, bool, str, str]]:
    for name, p in change.nodes.items():
        yield name, p.unreachable, p.heard_at, encode(p.report).decode()


def nodes_of(
    rows: Iterable[tuple[str, int, str]], warn: Warn
) -> tuple[tuple[NodeReport, bool], ...]:
    found = []
    for name, silent, text in rows:
        try:
            found.append((decode_report(text.encode()), bool(silent)))
        except LlmgwError as e:
            warn(f"node {name} in the inventory is left out: {e.message}")
    return tuple(found)


def draining_rows(draining: dict[str, Draining], now: Moment) -> list[tuple[str, str, str]]:
    return [(i, now.iso(d.since_s), _text(d)) for i, d in draining.items()]


def draining_of(
    rows: Iterable[tuple[str, str, str]], now: Moment, warn: Warn
) -> dict[str, Draining]:
    """Which table showed it draining is not taken over: gateways are to say so to this control."""
    found = {}
    for incarnation, since, text in rows:
        drain = _value(text, Draining, warn)
        if drain is not None:
            found[incarnation] = replace(drain, since_s=now.seconds(since), version=0)
    return found


def failure_rows(
    failures: dict[str, tuple[Failure, ...]], now: Moment
) -> list[tuple[str, str, str, str]]:
    every = [(m, f) for m, fs in failures.items() for f in fs]
    return [(m, f.incarnation, now.iso(f.at_s), _text(f)) for m, f in every]


def failures_of(
    rows: Iterable[tuple[str, str, str]], now: Moment, warn: Warn
) -> dict[str, tuple[Failure, ...]]:
    found: dict[str, tuple[Failure, ...]] = {}
    for model, at, text in rows:
        failure = _value(text, Failure, warn)
        if failure is not None:
            found[model] = (*found.get(model, ()), replace(failure, at_s=now.seconds(at)))
    return found


def confirmed_text(confirmed: frozenset[str]) -> str:
    return _text(sorted(confirmed))


def confirmed_of(text: str, warn: Warn) -> frozenset[str]:
    """One that cannot be read is asked for again."""
    return frozenset(_value(text or "[]", list[str], warn) or ())


def cordoned_text(cordoned: dict[tuple[str, str], str]) -> str:
    return _text([(node, gpu, why) for (node, gpu), why in sorted(cordoned.items())])


def cordoned_of(text: str, warn: Warn) -> dict[tuple[str, str], str]:
    """One that cannot be read is said: the operator drains anew."""
    rows = _value(text or "[]", list[tuple[str, str, str]], warn) or ()
    return {(node, gpu): why for node, gpu, why in rows}


def gateways_text(gateways: frozenset[str] | None) -> str:
    return "" if gateways is None else _text(sorted(gateways))


def gateways_of(text: str, warn: Warn) -> frozenset[str] | None:
    """None where it was not written or cannot be read: then any may have been there."""
    found = _value(text, list[str], warn) if text else None
    return None if found is None else frozenset(found)


def learned_rows(learned: dict[str, int]) -> list[tuple[str, str]]:
    return [(fingerprint, str(peak)) for fingerprint, peak in sorted(learned.items())]


def learned_of(rows: Iterable[tuple[str, str]]) -> dict[str, int]:
    """One that makes no sense is measured anew at the next run."""
    return {fingerprint: int(peak) for fingerprint, peak in rows if peak.isdecimal()}


def woken_text(woken_s: dict[str, float], now: Moment) -> str:
    return _text({m: now.iso(at_s) for m, at_s in sorted(woken_s.items())})


def woken_of(text: str, now: Moment, warn: Warn) -> dict[str, float]:
    """One that cannot be read is woken again by whoever misses it, or by the first request."""
    found = _value(text or "{}", dict[str, str], warn) or {}
    return {m: now.seconds(at) for m, at in found.items()}


def event_rows(change: Change) -> Iterator[tuple[int, str, str]]:
    for event in change.events:
        yield event["id"], event["at"], _text({k: v for k, v in event.items() if k != "id"})


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _value(text: str, kind: type[T], warn: Warn) -> T | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as e:
        warn(f"a {kind.__name__} in the inventory is left out: {e}")
        return None
