"""When what runs on a silent node counts as lost, so that it is replaced elsewhere (F61, A47).

Off by default: silence is no proof of death, and a second copy of a pinned model may be worse than none. Where a model
names `lost_after`, its owner has said how long he waits. Nothing is ended by it: when the node is back, both copies are
known again and A38 says which one stays. May not start anything.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.types.state import Node, State


def looked(state: State, now: float) -> State:
    """The state with what is lost as of now; the same one where that has not changed.

    While nobody at all is heard it is probably us (F63): nothing is lost then, and what is silent once somebody is back
    has its whole time again. Else the first node to come back would be given the engines of all the others.
    """
    silent = _silent(state)
    if silent and len(silent) == len(state.nodes):
        return replace(state, lost=frozenset(), deaf_s=now)
    found = frozenset(_lost(state, now)) if silent else frozenset()
    return state if found == state.lost else replace(state, lost=found)


def _silent(state: State) -> list[Node]:
    """None while settling: who has not spoken yet may be about to (A46)."""
    return [] if state.settling else [n for n in state.nodes.values() if not n.connected]


def _lost(state: State, now: float) -> set[str]:
    found = set()
    for node in _silent(state):
        for shard in node.shards:
            due_s = due(state, node, shard.report.model) if shard.holds else None
            if due_s is not None and now >= due_s:
                found.add(shard.incarnation)
    return found


def due(state: State, node: Node, model: str) -> float | None:
    """When the model's replicas on a silent node count as lost; None for never.

    A node that this control has not heard counts from when it settled: how long it was silent before, nobody saw.
    """
    of = state.catalog.resolve(model)
    if of is None or of.lost_after_s is None:
        return None
    since_s = node.lost_s if node.lost_s is not None else state.settled_s
    return None if since_s is None else max(since_s, state.deaf_s) + of.lost_after_s


def said(state: State, name: str, now: float) -> str:
    """What becomes of the engines of a silent node, for people; "" where it is believed to run none."""
    node = state.nodes[name]
    words = [
        f"{s.report.replica} ({_fate(state, node, s.report.model, now)})"
        for s in node.shards
        if s.holds and not s.rank
    ]
    return f"{name} is silent, what it runs is left alone: {', '.join(words)}" if words else ""


def _fate(state: State, node: Node, model: str, now: float) -> str:
    due_s = due(state, node, model)
    if due_s is None:
        return "lost_after never: none is started elsewhere"
    if now < due_s:
        return f"counts as lost in {due_s - now:.0f} s"
    return "counts as lost, replaced where there is room"
