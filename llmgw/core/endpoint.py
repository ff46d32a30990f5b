"""Where an engine is asked, and whether only its own box can: an endpoint keeps the address its engine listens on.

A box may get another address, or leave loopback for one, while its engines run on at the one they were started with.
May not look: who listens where is the agent's to tell.
"""

from __future__ import annotations

from llmgw.core.types.messages import LISTENS, NodeReport, Start
from llmgw.core.types.node import NodeFacts
from llmgw.core.types.plan import Replica


def endpoint(host: str, port: int) -> str:
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"


def asked_at(facts: NodeFacts, start: Start) -> str:
    """Where what is started now will listen; a worker that only takes connections of its group does on the fabric."""
    fabric = facts.fabrics.get(start.fabric) if start.health == LISTENS else None
    return (fabric.address if fabric else "") or facts.address


def address(url: str) -> str:
    """The host of an endpoint, "" where there is none."""
    return url.removeprefix("http://").rpartition(":")[0].strip("[]")


def loopback(host: str) -> bool:
    """Not `ipaddress`: it is asked of every replica at every pass."""
    return host in ("::1", "localhost") or (
        host.startswith("127.") and host.replace(".", "").isdecimal()
    )


def left_behind(replica: Replica, node: NodeReport) -> str:
    """For people: it listens on loopback only, and its node has an address by now; "" where that is not so."""
    host = address(replica.endpoint)
    if not loopback(host) or loopback(node.address):
        return ""
    return (
        f"{replica.replica} listens on {host} of {node.node} only, whose address is {node.address} by now: gateways on "
        f"{node.node} use it, those on other boxes cannot; when it suits, `llmgw stop {replica.replica}`: the next one "
        f"listens on {node.address}"
    )
