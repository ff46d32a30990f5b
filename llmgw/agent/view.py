"""What the agent's API may see, and no more. Loads nothing: the server comes after the first registration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llmgw.agent.logs import Logs
from llmgw.core.types.node import AgentState
from llmgw.core.types.record import Record


class View(NamedTuple):
    """`controls` is one line a control; `metrics` renders the exposition."""

    state: Callable[[], AgentState]
    controls: Callable[[], list[dict[str, Any]]]
    secrets_of: Callable[[Record], frozenset[str]]
    metrics: Callable[[], Any]
    logs: Logs
    tokens: frozenset[str]
    names: frozenset[str]
