"""A second machine behind the name of a node, or a copy of its state dir: refused while the first is heard (F52, F53).

It has nothing of what the first one runs: let in, its empty report would have everything there forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from llmgw.core.types.messages import Command, Registered
from tests.sim.network import Unreachable

if TYPE_CHECKING:
    from tests.sim.agents import Agent
    from tests.sim.simulation import Simulation

#: Only while the first was heard so short a time ago: a node silent for longer may be given to another machine.
HEARD_S = 10.0


def knocks(sim: Simulation, agent: Agent, *, clone: bool) -> None:
    leader = sim.leader
    if leader is None or leader.state is None or leader.frozen or agent.state is None:
        return
    session = leader.sessions.of.get(agent.facts.node)
    if session is None or sim.clock.now - session.heard_s > HEARD_S:
        return
    facts = agent.snapshot()
    other = replace(
        facts,
        node_id=facts.node_id if clone else f"other-{facts.node_id}",
        boot_id=f"other-{facts.boot_id}",
        shards=(),
        registration=sim.clock.steps,
    )
    sim.say("double", "registers", f"{other.node}, node id {other.node_id}")

    def no_peer(_: str, __: tuple[Command, ...]) -> tuple[str, int]:
        raise Unreachable

    def let_in(_: Registered) -> None:
        sim.judge.require(
            "two of one name are told apart",
            holds=False,
            said=f"{leader.url} let {other.node_id} register as {other.node}",
        )

    sim.judge.checks["two of one name are told apart"] += 1
    sim.net.call(
        ("double", leader.url),
        lambda: leader.sessions.register(other, no_peer),
        let_in,
        lambda: None,
    )
