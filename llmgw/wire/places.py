"""Where a model could go, for `status`: each node's answer for one model, and a warning for models that fit nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import to_builtins

from llmgw.core import failed
from llmgw.core.place.explain import emptied, explain, impossible
from llmgw.core.types.messages import NodeReport
from llmgw.core.types.state import Node, State

#: So many models are named; a fleet without its cards would else say it of each.
NAMED = 10


def with_places(document: dict[str, Any], state: State, name: str, now: float) -> dict[str, Any]:
    """The status with `places` at the model that answers to `name`; as it is where none does."""
    model = state.catalog.resolve(name)
    if model is None:
        return document
    rows = to_builtins(list(explain(state, model, failed.lacks(state, model, now))))
    models = [m | {"places": rows} if m["name"] == model.name else m for m in document["models"]]
    return document | {"models": models}


class Nowhere:
    """What fits nowhere, even with nothing else running: found once, and anew when the catalog or a node changes.

    Each look at the status asks, and it is a question to all models; what comes and goes on the nodes changes nothing.
    """

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._nodes: dict[str, tuple[NodeReport, NodeReport]] = {}
        self._said: tuple[str, ...] = ()

    def said(self, state: State) -> tuple[str, ...]:
        of = (state.catalog, state.learned, state.settling)
        alike = [self._alike(name, node) for name, node in state.nodes.items()]
        if not (self._of == of and all(alike) and len(alike) == len(self._nodes)):
            self._of = of
            self._nodes = {
                name: (node.report, emptied(node).report) for name, node in state.nodes.items()
            }
            self._said = tuple(_warnings(state))
        return self._said

    def _alike(self, name: str, node: Node) -> bool:
        """Whether it is still of the same make; nearly always it is the very same node."""
        known = self._nodes.get(name)
        if known is None:
            return False
        before, empty = known
        if node.report is before:
            return True
        self._nodes[name] = (node.report, empty)
        return emptied(node).report == empty


def _warnings(state: State) -> Iterator[str]:
    found = list(impossible(state))
    for model, why in found[:NAMED]:
        yield f"{model} fits nowhere, not even with nothing else running: {why}"
    if len(found) > NAMED:
        yield f"and {len(found) - NAMED} more models fit nowhere; llmgw status MODEL says why"
