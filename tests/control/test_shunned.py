"""A68: a replica that gateways leave alone is told of when it lasts, and shown in `status` with the reason."""

from llmgw.control.shunned import OPEN_S
from tests.control.bench import Agent, Bench, engine, scenario

GATEWAY = "6f5902ac-237a-4f5f-a2d0-d09b1b5b5e4a"
WHY = "alpha-1 refuses connections"


@scenario
async def test_a68_an_open_breaker_is_an_event_after_a_while_and_once(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine("alpha-1"))
        await agent.register()
        n = 0

        async def said(state: str, seconds: float) -> None:
            nonlocal n
            left = seconds
            while left > 0:
                n += 1
                open_at = {} if state == "closed" else {"alpha-1": state}
                whys = dict.fromkeys(open_at, WHY)
                await bench.demand(n, GATEWAY, breaker=open_at, breaker_why=whys)
                await agent.tell()
                await bench.later(min(left, 5.0))
                left -= 5.0

        await said("open", 10.0)
        await said("half-open", OPEN_S - 15.0)
        assert not bench.events("breaker_open")
        (replica,) = (await bench.get("/api/v1/status"))["replicas"]
        assert (replica["breaker"], replica["breaker_why"]) == ("half-open", WHY)
        assert replica["state"] == "ready"
        await said("open", 60.0)
        (event,) = bench.events("breaker_open")
        assert event["replica"] == "alpha-1"
        assert f"gateway 6f5902ac has left alpha-1 alone for 30 s: {WHY}" in event["why"]
        assert not bench.events("breaker_closed")
        await said("closed", 5.0)
        (event,) = bench.events("breaker_closed")
        assert event["replica"] == "alpha-1"
        (replica,) = (await bench.get("/api/v1/status"))["replicas"]
        assert (replica["breaker"], replica["breaker_why"]) == ("closed", None)
        # Short ones are nobody's news, and the next long one is.
        for _ in range(3):
            await said("open", OPEN_S - 5.0)
            await said("closed", 5.0)
        assert len(bench.events("breaker_open")) == 1
        await said("open", OPEN_S + 10.0)
        assert len(bench.events("breaker_open")) == 2


@scenario
async def test_a68_one_gateway_that_cannot_reach_it_is_enough(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine("alpha-1"))
        await agent.register()
        for n in range(1, 10):
            await bench.demand(n, GATEWAY, breaker={"alpha-1": "open"})
            await bench.demand(n, "other")
            await agent.tell()
            await bench.later(5.0)
        (event,) = bench.events("breaker_open")
        assert event["why"] == "gateway 6f5902ac has left alpha-1 alone for 30 s"
