"""What operators said and a leader learned, as it is left in the lease store for whoever leads next (A22-A24).

Answers for: a small value, dated by the clock on the wall, that an older or newer control can read. An inventory of
another host does not have it: its last word may be a year old. It may not decide, nor do I/O.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from llmgw.control import picture
from llmgw.control.catalogs import Used
from llmgw.control.keys import Keys
from llmgw.control.node_tokens import NodeToken
from llmgw.control.picture import Moment, believed, unreachable
from llmgw.core import idle
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types.messages import NodeReport
from llmgw.core.types.state import State
from llmgw.wire import encode

Warn = Callable[[str], None]
#: etcd takes 1.5 MiB in one request; what silent nodes were believed to run, and the catalog's text, are left out
#: before that.
BYTES = 1 << 20


class Intent(Struct, frozen=True, kw_only=True):
    """`memory.nodes` are those that were silent; `nodes` all that are expected, by name. `tokens` None: nobody said."""

    nodes: frozenset[str] = frozenset()
    memory: Memory = Memory()
    keys: Keys = {}
    tokens: tuple[NodeToken, ...] | None = None
    catalog: Used = Used()


class _Wire(Struct, kw_only=True):
    version: int = 1
    catalog: str = ""
    sources: dict[str, str] = {}
    passed: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    silent: tuple[tuple[str, int, str], ...] = ()
    paused: str = ""
    confirmed: str = ""
    cordoned: str = ""
    woken: str = ""
    draining: tuple[tuple[str, str, str], ...] = ()
    failures: tuple[tuple[str, str, str], ...] = ()
    learned: dict[str, int] = {}
    gateways: str = ""
    keys: Keys = {}
    tokens: tuple[NodeToken, ...] | None = None


def written(
    state: State,
    keys: Keys,
    now: Moment,
    used: Used = Used(),  # noqa: B008 - frozen
    tokens: tuple[NodeToken, ...] | None = None,
) -> bytes:
    """The same bytes while nothing of it changed."""
    silent = {n: node for n, node in sorted(state.nodes.items()) if unreachable(state, node)}
    rows = tuple(
        (name, 1, encode(replace(believed(node), registration=0)).decode())
        for name, node in silent.items()
    )
    found = _Wire(
        catalog=used.digest or state.catalog.digest,
        sources=used.sources,
        passed=used.passed,
        nodes=tuple(sorted(state.nodes)),
        silent=rows,
        paused=state.paused,
        confirmed=picture.confirmed_text(state.confirmed),
        cordoned=picture.cordoned_text(state.cordoned),
        woken=picture.woken_text(state.woken_s, _coarse(now)),
        draining=tuple(picture.draining_rows(state.draining, _coarse(now))),
        failures=tuple(
            (m, at, t) for m, _, at, t in picture.failure_rows(state.failures, _coarse(now))
        ),
        learned=dict(sorted(state.learned.items())),
        gateways=picture.gateways_text(idle.gateways(state)),
        keys=keys,
        tokens=tokens,
    )
    data = msgspec.json.encode(found)
    if len(data) > BYTES:
        found.silent, found.sources = (), {}
        data = msgspec.json.encode(found)
    return data


def _coarse(now: Moment) -> Moment:
    """Both clocks drift by microseconds: whole seconds of their distance keep the text as it was."""
    return Moment(now.mono, float(round(now.wall - now.mono)) + now.mono)


def read(data: bytes, now: Moment, warn: Warn) -> Intent | None:
    """None where nothing was left, or it cannot be read."""
    if not data:
        return None
    try:
        found = msgspec.json.decode(data, type=_Wire)
    except msgspec.MsgspecError as e:
        warn(f"what the leader before left in the lease store cannot be read: {e}")
        return None
    memory = Memory(
        nodes=picture.nodes_of(((n, s, t) for n, s, t in found.silent), warn),
        failures=picture.failures_of(found.failures, now, warn),
        draining=picture.draining_of(found.draining, now, warn),
        paused=found.paused,
        confirmed=picture.confirmed_of(found.confirmed, warn),
        cordoned=picture.cordoned_of(found.cordoned, warn),
        woken_s=picture.woken_of(found.woken, now, warn),
        learned=found.learned,
        gateways=picture.gateways_of(found.gateways, warn),
    )
    used = Used(digest=found.catalog, sources=found.sources, passed=found.passed)
    return Intent(
        nodes=frozenset(found.nodes),
        memory=memory,
        keys=found.keys,
        tokens=found.tokens,
        catalog=used,
    )


def merged(stored: Memory, left: Intent | None, warm: Memory) -> Memory:
    """What counts: the word of the leader before, else the file's; of the fleet what was heard last."""
    base, nodes = stored, {r.node: (r, silent) for r, silent in stored.nodes}
    if left is not None:
        base = left.memory
        # Forgotten since, or never there: a node of an old file alone is none that anybody waits for.
        nodes = {name: nodes.get(name, (NodeReport(node=name), False)) for name in left.nodes}
        nodes |= {r.node: (r, silent) for r, silent in left.memory.nodes}
    known = left is not None or stored.epoch > 0
    for report, silent in warm.nodes:
        if not (silent and known) or report.node in nodes:  # else it was forgotten meanwhile
            nodes[report.node] = (report, silent)
    failures = dict(base.failures)
    for model, seen in warm.failures.items():
        told = {f.incarnation for f in failures.get(model, ())}
        fresh = tuple(f for f in seen if f.incarnation not in told)
        # By time, as they are counted: the last one is the newest, from which the back-off runs.
        both = sorted((*failures.get(model, ()), *fresh), key=lambda f: (f.at_s, f.incarnation))
        failures[model] = tuple(both)
    learned = dict(base.learned)
    for fingerprint, size in (*stored.learned.items(), *warm.learned.items()):
        learned[fingerprint] = max(learned.get(fingerprint, 0), size)
    ordered = tuple(nodes[name] for name in sorted(nodes))
    return replace(base, epoch=stored.epoch, nodes=ordered, failures=failures, learned=learned)
