"""A control whose lease ends in the middle of what it does, and what a standby passes on (F22, F27, F30)."""

from __future__ import annotations

import asyncio
from typing import Any

from llmgw.control.api import Api
from llmgw.control.lease import LeaseLostError
from tests.control.bench import Agent, Bench, engine, scenario
from tests.control.test_standby import with_lease

#: Asked of any control, of agents' doing, or the end of this very process; node tokens are each host's own.
ANYBODY = {"/api/v1/plan", "/api/v1/adopt", "/api/v1/shutdown", "/api/v1/standbys"}
BODIES: dict[str, Any] = {
    "/api/v1/confirm": {"digest": "sha256:" + "0" * 64},
    "/api/v1/keys": {"name": "cli"},
}


def verbs(bench: Bench) -> list[tuple[str, str]]:
    """Every word of an operator's that changes something, as the API lists them."""
    there = [(method, path) for method, path, _, _ in Api(bench.control, lambda: 0).table()]
    ours = [(m, p) for m, p in there if m in ("POST", "PUT") and p.startswith("/api/v1/")]
    return [(m, p) for m, p in ours if p not in ANYBODY and "/tokens" not in p]


@scenario
async def test_f27_no_operators_word_is_taken_after_the_deadline(bench: Bench) -> None:
    """The time is over and no pass has noticed yet: he is told so, and not that it is done."""
    hand = with_lease(bench, held=True)
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.later(2)
        said = verbs(bench)
        assert len(said) > 12
        text = bench.catalog.read_text()
        for method, path in said:
            hand.until = bench.clock.now
            control.leading = True
            name = "box1" if "/nodes/" in path else "alpha"
            body = BODIES.get(path, {"catalog": text} if method == "PUT" else {})
            answer = await bench.client.request(method, path.replace("{name}", name), json=body)
            error = answer.json().get("error", {})
            assert error.get("code") == "not_leading", f"{method} {path}: {answer.text}"
        assert bench.events("node_forgotten") == []
        assert not control.state.ending


@scenario
async def test_f25_a_word_that_meets_the_loss_of_the_lease_is_not_said_to_be_done(
    bench: Bench,
) -> None:
    hand = with_lease(bench, held=True)
    ended = False
    try:
        async with bench.running() as control:
            agent = Agent(bench)
            await agent.register()
            await bench.later(1)
            hand.lost = "somebody else has it"
            answer = await bench.client.post("/api/v1/pause", json={"why": "moving house"})
            assert answer.json()["error"]["code"] == "lease_lost"
            assert not control.leading
            assert b"moving house" not in hand.intent
    except* LeaseLostError:
        ended = True
    assert ended


@scenario
async def test_f30_no_gateway_is_held_by_who_does_not_lead_any_more(bench: Bench) -> None:
    """Cut off from its store alone it would be asked for tables for ever, and who leads instead never."""
    hand = with_lease(bench, held=True)
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.later(2)
        path = f"/gateway/v1/routes?version={control.routes.version}"
        held = asyncio.ensure_future(bench.client.get(path))
        await asyncio.sleep(0.05)
        assert not held.done()
        hand.until = bench.clock.now
        await bench.later(1)
        assert not control.leading
        assert (await asyncio.wait_for(held, 5)).status_code in (200, 304)
        path = f"/gateway/v1/routes?version={control.routes.version}"
        assert (await bench.client.get(path)).status_code == 204
        newer = await bench.client.get("/gateway/v1/routes?version=0")
        assert newer.status_code == 200, "who has none gets what there is"


@scenario
async def test_the_plan_that_will_be_applied_is_the_leaders(bench: Bench) -> None:
    """`llmgw catalog apply` by way of a standby: its own picture and file may be others."""
    with_lease(bench)
    async with bench.running():
        await Agent(bench).register()
        await bench.later(1)
        assert "actions" in await bench.get("/api/v1/plan")
        said = await bench.get("/api/v1/plan?leader=1", status=503)
        assert "leads and cannot be reached" in said["error"]["message"]
        text = bench.catalog.read_text()
        said = await bench.post("/api/v1/plan?leader=1", {"catalog": text}, status=503)
        assert said["error"]["code"] == "not_leading"


@scenario
async def test_f13_a_standby_whose_disk_cannot_be_written_leads_by_the_stores_word(
    bench: Bench,
) -> None:
    """It has the lease, so nobody else can lead: the epoch and operators' words are in etcd, its file is history."""
    hand = with_lease(bench)
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        bench.inventory.mkdir(parents=True)  # nothing can be written there, root or not
        hand.comes()
        await bench.later(1)
        status = await bench.get("/api/v1/status")
        assert control.leading
        assert any("history is not kept" in w for w in status["warnings"])
        (told,) = bench.events("inventory")[:1]
        assert "leads by what the leader before left" in told["why"]
        assert [r["replica"] for r in status["replicas"]] == ["alpha-1"]
