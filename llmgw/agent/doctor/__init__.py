"""`llmgw doctor`: what is wrong on this node. Looks, judges, changes nothing.

How it is cut: `look` has the settings and the doors to the machine; `devices`, `place`, `host`, `catalog` and `peers`
judge what they see, one `Check` a fact. Only what can be known is said, never a guess. The figures come with it.
"""

from __future__ import annotations

from llmgw.agent.doctor.catalog import catalog
from llmgw.agent.doctor.devices import devices
from llmgw.agent.doctor.host import host
from llmgw.agent.doctor.look import Check, Node
from llmgw.agent.doctor.peers import peers
from llmgw.agent.doctor.place import place

__all__ = ["Check", "Node", "examine"]


def examine(node: Node) -> list[Check]:
    """Everything, in the order in which it would be put right."""
    return [check for part in (devices, place, host, peers, catalog) for check in part(node)]
