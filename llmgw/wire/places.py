"""Where a model could go, for `status`: each node's answer for one model, and a warning for models that fit nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import to_builtins

from llmgw.core.place.explain import explain, impossible
from llmgw.core.types.state import State

#: So many models are named; a fleet without its cards would else say it of each.
NAMED = 10


def with_places(document: dict[str, Any], state: State, name: str) -> dict[str, Any]:
    """The status with `places` at the model that answers to `name`; as it is where none does."""
    model = state.catalog.resolve(name)
    if model is None:
        return document
    rows = to_builtins(list(explain(state, model)))
    models = [m | {"places": rows} if m["name"] == model.name else m for m in document["models"]]
    return document | {"models": models}


def warnings(state: State) -> Iterator[str]:
    found = list(impossible(state))
    for model, why in found[:NAMED]:
        yield f"{model} fits nowhere, not even with nothing else running: {why}"
    if len(found) > NAMED:
        yield f"and {len(found) - NAMED} more models fit nowhere; llmgw status MODEL says why"
