"""Where a model could be placed and where not, node by node, for people: `llmgw status MODEL`.

The same questions that placement asks, for the fleet as it is now and for an empty one. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.capacity import holdings
from llmgw.core.place.choose import Placement, find
from llmgw.core.place.fit import Fit, fit
from llmgw.core.place.fleet import Fleet
from llmgw.core.types.catalog import Model
from llmgw.core.types.state import Node, State


class Answer(Struct, frozen=True):
    """What one node says to one more replica by this profile, or of several nodes to one rank of it.

    `takes`: "yes", "soon" (other starts come first), "no"; `why` has the tightest resource in figures.
    """

    node: str
    profile: str
    takes: str
    why: str


def explain(
    state: State, model: Model, lacks: Iterable[tuple[str, str, str]] = ()
) -> Iterator[Answer]:
    """Every node's answer, profile by profile in the order in which they are tried.

    `lacks`: by node and fingerprint, what a start would not find there (`failed.lacks`).
    """
    fleet = Fleet(state, holdings(state))
    for lack in lacks:
        fleet.lacks(*lack)
    for profile in model.profiles:
        for name, node in sorted(state.nodes.items()):
            answer = fit(fleet, node, profile)
            if isinstance(answer, Fit):
                takes, why = ("soon", answer.wait) if answer.wait else ("yes", answer.why)
            else:
                takes, why = "no", answer
            yield Answer(name, profile.name, takes, why)


def impossible(state: State) -> Iterator[tuple[str, str]]:
    """Models that would find no room in a fleet where nothing runs, and why: no wait will help them.

    While a node is yet to tell what it has, or is too old to be asked, nothing is said: it may be the one.
    """
    nodes = state.nodes.values()
    if state.settling or not nodes or any(_untold(n) for n in nodes):
        return
    empty = replace(
        state, nodes={name: emptied(n) for name, n in state.nodes.items()}, cordoned={}, refused=()
    )
    fleet = Fleet(empty, holdings(empty))
    for model in state.catalog.models.values():
        answer = find(fleet, model)
        if not isinstance(answer, Placement):
            yield model.name, answer.why


def _untold(node: Node) -> bool:
    report = node.report
    return report.gpus is None or bool(report.gpus_error) or not report.reattached or node.too_old


def emptied(node: Node) -> Node:
    """As if it were heard and nothing ran there; what is wrong with its cards stays."""
    gpus = tuple(replace(g, memory_used_bytes=0) for g in node.report.gpus or ())
    report = replace(node.report, gpus=gpus, foreign=())
    return replace(node, report=report, shards=(), connected=True, settled=True)
