"""A control that stood still has heard nobody, and nobody is silent for that (F22)."""

from __future__ import annotations

from llmgw.control.awake import STALL_S, Awake
from llmgw.core.types.messages import StopShard
from tests.control.bench import Agent, Bench, engine, scenario


async def stall(bench: Bench, seconds: float) -> None:
    """As after SIGSTOP and SIGCONT: the clock went on, and a pass comes before anything that waits in the sockets."""
    bench.clock.now += seconds
    await bench.control.ask(lambda _: None)


def test_of_a_gap_no_more_counts_than_could_have_been_heard() -> None:
    now = [100.0]
    awake = Awake(lambda: now[0])
    told = []
    for gap in (30.0, 1.0, STALL_S, STALL_S + 1, 3600.0, 2.0):
        now[0] += gap
        told.append((awake.turn(), awake.now_s()))
    assert told == [(0, 130), (0, 131), (0, 136), (6, 141), (3600, 146), (0, 148)]


@scenario
async def test_f22_a_stall_of_control_is_not_the_agents_silence(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await stall(bench, 600)
        assert bench.connected("box1")
        assert (await agent.tell()).match
        assert bench.events("node_silent") == []
        (told,) = bench.events("stalled")
        assert told["why"] == "control stood still for 600 s; nobody counts as silent for that"
        await bench.later(14)
        assert bench.connected("box1")
        await bench.later(2)
        assert not bench.connected("box1")
        assert len(bench.events("stalled")) == 1
        assert control.leading


@scenario
async def test_f22_the_lease_is_looked_at_first(bench: Bench) -> None:
    """Before any fact is folded or order given: somebody else may lead by now."""
    async with bench.running() as control:
        seen: list[str] = []
        control.lease.renew = lambda: seen.append("lease")  # type: ignore[method-assign]
        bench.clock.now += 60
        await control.ask(lambda _: seen.append("fold"), urgent=False)
        assert seen[:2] == ["lease", "fold"]


@scenario
async def test_f22_settling_does_not_end_while_nobody_could_be_heard(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
    async with bench.running():
        other = Agent(bench, "box2", epoch_seen=1)
        await other.register()
        await stall(bench, 600)
        assert bench.settling()
        await agent.register()
        assert not bench.settling()
        assert bench.orders(other) == []


@scenario
async def test_f22_a_gateway_in_the_middle_of_a_stream_is_not_gone(bench: Bench) -> None:
    """The drained replica was stopped under it: nothing in flight, by a gateway that was out of the count."""
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.post("/api/v1/replicas/alpha-1/stop")
        await bench.demand(1, in_flight={"alpha-1": 1})
        await stall(bench, 90)
        assert (await agent.tell()).match
        await bench.demand(2, in_flight={"alpha-1": 1})
        queue = control.sessions.get(agent.session).queue.values()
        assert not [c for c in queue if isinstance(c, StopShard)]
