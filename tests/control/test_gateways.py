"""Gateways of before: which ones a control that starts has to hear before it takes an engine for idle (A63, A65)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llmgw.control import intent
from llmgw.control.picture import Change, Moment, gateways_text
from llmgw.control.store import Store, moment, read_memory
from llmgw.core.types.routes import GATEWAY_GONE_S
from llmgw.core.types.state import State
from tests.control.bench import ON_DEMAND, Agent, Bench, engine, scenario


async def pending(bench: Bench) -> str:
    (stop,) = (await bench.get("/api/v1/status"))["stops_pending"]
    return str(stop["why"])


async def begun(bench: Bench, *gateways: str) -> Agent:
    """An idle engine on its way out just after control was killed and started; these have spoken."""
    agent = Agent(bench)
    agent.runs(engine())
    await agent.register()
    for name in gateways:
        await bench.demand(1, name)
    await bench.post("/api/v1/nodes/box1/drain")
    for name in gateways:
        await bench.demand(2, name)
    return agent


@scenario
async def test_after_a_kill_a_drain_waits_for_those_that_were_there_and_says_so(
    bench: Bench,
) -> None:
    """It waited for a minute, whoever had spoken: any gateway might have been there before."""
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running(crash=True):
        await bench.later(GATEWAY_GONE_S + 1)
        await bench.demand(1, "0123456789")
        await bench.demand(1, "ab")
    async with bench.running(crash=True):
        agent = await begun(bench, "ab")
        await bench.serves(5, agent)
        assert (
            "; control started 5 s ago, gateway 01234567 has not said yet what it serves (at "
            in (await pending(bench))
        )
        for n in (3, 4):
            await bench.demand(n, "0123456789")
            await bench.demand(n, "ab")
            await bench.later(3)
        for name in ("ab", "0123456789"):
            said = await bench.demand(9, name)
            assert (said.leader, said.version) == (True, bench.control.routes.version)
        await agent.stop_one()
        assert bench.control.now().mono - bench.control.state.started_s < GATEWAY_GONE_S / 2


@scenario
async def test_on_a_file_that_does_not_say_any_may_have_been_there(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running(crash=True):
        agent = await begun(bench, "g1")
        await bench.serves(30, agent)
        assert "a gateway may not have said yet what it serves (at most 30 s more)" in (
            await pending(bench)
        )


@scenario
async def test_those_that_were_not_heard_in_a_short_life_are_not_forgotten(bench: Bench) -> None:
    """Two kills in a row: the second control may not take for idle what the first could not tell."""
    async with bench.running(crash=True):
        assert not bench.control.state.unheard, "nobody knows whether this file is the first"
        await bench.later(GATEWAY_GONE_S + 1)
        await bench.demand(1, "g1")
    for n in (2, 3):
        async with bench.running(crash=True):
            await bench.demand(1, f"g{n}")
    async with bench.running(crash=True):
        assert bench.control.state.unheard == frozenset({"g1", "g2", "g3"})
        await bench.demand(1, "g3")
        await bench.later(GATEWAY_GONE_S + 1)
        await bench.demand(2, "g3")
        assert read_memory(bench.inventory).gateways == frozenset({"g3"})


@pytest.mark.parametrize("there", [None, frozenset[str](), frozenset({"a", "b"})])
def test_the_leader_before_leaves_them_to_the_next(there: frozenset[str] | None) -> None:
    now = Moment(100.0, 1_700_000_100.0)
    left = intent.read(intent.written(State(unheard=there), {}, now), now, print)
    assert left is not None
    assert left.memory.gateways == there


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    store, said = Store(tmp_path / "inventory.db", warn=print), list[str]()
    store.open()
    store.save(Change(gateways=gateways_text(frozenset({"g"}))), moment(0.0))
    store.close()
    assert read_memory(tmp_path / "inventory.db").gateways == frozenset({"g"})
    with closing(sqlite3.connect(tmp_path / "inventory.db")) as db, db:
        db.execute("UPDATE meta SET value = '[1' WHERE key = 'gateways'")
    assert read_memory(tmp_path / "inventory.db", warn=said.append).gateways is None
    assert len(said) == 1
