"""Whether waiting can help at all: the fleet as it would be if all were heard, nothing ran and nobody refused.

What an operator drained stays so: it takes no work, however idle it is. May not say what is to be done about it.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.capacity import holdings
from llmgw.core.place.explain import emptied
from llmgw.core.place.fleet import Fleet
from llmgw.core.types.catalog import Model
from llmgw.core.types.state import Node, State


def bare_boxes(state: State) -> Fleet:
    nodes = {name: emptied(n) for name, n in state.nodes.items()}
    empty = replace(state, nodes=nodes, refused=())
    return Fleet(empty, holdings(empty))


def unheard(state: State, model: Model) -> bool:
    """Whether some node that takes work is yet to tell what it has: it may be the one."""
    blind = any(p.gpus for p in model.profiles)
    takes = [n for name, n in state.nodes.items() if (name, "") not in state.cordoned]
    return not state.nodes or any(_untold(n, blind=blind) for n in takes)


def _untold(node: Node, *, blind: bool) -> bool:
    """`blind`: without its GPUs nothing can be said."""
    report = node.report
    if not node.settled or not report.reattached or node.too_old:
        return True
    return blind and (report.gpus is None or bool(report.gpus_error))
