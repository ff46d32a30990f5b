"""`POST models/{name}/wake`: what becomes of the wish, or would; a restart of control forgets none (A22, A64)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from llmgw.control.wake import document
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import Capacity, DrainShard, Refusal
from llmgw.core.types.state import (
    Cleared,
    Cordoned,
    DozeBegun,
    Failure,
    Published,
    ShardsChanged,
    State,
    Tick,
    Turned,
    Withheld,
    Woken,
)
from tests.control.bench import ON_DEMAND, Agent, Bench, engine, scenario
from tests.core.test_absent import ABSENT
from tests.core.test_asleep import T, other, sleeper
from tests.core.test_asleep import world as asleep_world
from tests.core.test_least import two
from tests.core.world import catalog as world_of
from tests.core.world import model, node, place_at, running, shard

OTHER = """\
  beta:
    scaling: {min: 0, max: 1, idle_timeout: 10m, min_up: 0s}
    profiles:
      - {name: main, command: [/bin/other, --port, "${port}"], host_memory: 1GiB}
  huge:
    scaling: {min: 0}
    profiles:
      - {name: main, command: [/bin/huge, --port, "${port}"], host_memory: 900GiB}
"""
WAKE = "/api/v1/models/{}/wake"
#: Room for one of the two small ones.
ONE = Capacity(host_memory_bytes=3 << 29, ports=(18000, 18009))


async def met(bench: Bench, *running: str) -> Agent:
    agent = Agent(bench, capacity=ONE)
    for name in running:
        agent.runs(engine(f"{name}-1", model=name))
    await agent.register()
    return agent


def catalog(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND + OTHER)


def world(bench: Bench) -> tuple[Any, ...]:
    control = bench.control
    return (control.state, control.routes, control.plan.actions, len(control.story.events))


@scenario
async def test_a_model_is_loaded_before_anybody_asks(bench: Bench) -> None:
    catalog(bench)
    async with bench.running():
        agent = await met(bench)
        said = await bench.post(WAKE.format("first"))
        assert said == {
            "schema": "llmgw.wake/1",
            "model": "alpha",
            "dry_run": False,
            "state": "starts",
            "why": "woken 0 s ago, 0 running; fits box1 on its CPU",
            "profile": "main",
            "places": [{"node": "box1", "rank": 0, "gpus": [], "port": 18000}],
            "evicts": [],
            "warning": None,
        }
        shard = await agent.start_one("loading")
        assert (await bench.post(WAKE.format("alpha")))["state"] == "loading"
        await agent.tell(replace(shard, state="ready"))
        said = await bench.post(WAKE.format("alpha"))
        assert said["state"] == "ready"
        assert said["why"].endswith("/0 on box1 is ready")
        await bench.later(5)
        assert bench.control.state.woken_s == {}
        assert [e["why"] for e in bench.events("wake")] == ["an operator wakes alpha"] * 3


@scenario
async def test_a64_a_dry_run_names_who_would_go_and_changes_nothing(bench: Bench) -> None:
    catalog(bench)
    async with bench.running():
        agent = await met(bench, "alpha")
        await bench.serves(65, agent)  # by then every gateway has said what it serves
        before = world(bench)
        said = await bench.post(WAKE.format("beta"), {"dry_run": True})
        assert world(bench) == before
        assert (said["state"], said["dry_run"]) == ("waits", True)
        (row,) = said["evicts"]
        assert (row["replica"], row["model"], row["when"]) == ("alpha-1", "alpha", "now")
        assert row["why"].startswith("makes room for beta; idle for ")
        assert [p["node"] for p in said["places"]] == ["box1"]
        await bench.serves(5, agent)
        assert bench.orders(agent) == []

        done = await bench.post(WAKE.format("beta"))
        assert {k: v for k, v in done.items() if k in ("state", "places")} == {
            k: v for k, v in said.items() if k in ("state", "places")
        }
        queue = bench.control.sessions.get(agent.session).queue.values()
        assert [(c.shard, c.reason) for c in queue if isinstance(c, DrainShard)] == [
            ("alpha-1/0", "evict")
        ]
        (drain,) = bench.events("drain")
        assert drain["why"] == done["evicts"][0]["why"]


@scenario
async def test_a_busy_one_goes_later_and_one_on_its_way_out_is_said(bench: Bench) -> None:
    catalog(bench)
    async with bench.running():
        agent = await met(bench, "alpha")
        await bench.serves(65, agent, in_flight={"alpha-1": 1})
        said = await bench.post(WAKE.format("beta"), {"dry_run": True})
        assert [r["when"] for r in said["evicts"]] == ["later"]
        assert "alpha-1 is busy (1 in flight)" in said["why"]
        await bench.post("/api/v1/models/alpha/stop")
        said = await bench.post(WAKE.format("beta"), {"dry_run": True})
        assert [r["when"] for r in said["evicts"]] == ["ends"]


def told(state: State, name: str, now: float = T) -> dict[str, Any]:
    """The document of a wish for the model."""
    state = observe(state, Woken(name), now)
    return document(decide(state, now), state, state.catalog.models[name], now, dry_run=True)


def test_a64_one_that_falls_asleep_for_it_goes_now_and_then_is_on_its_way() -> None:
    """Not "later": it is neither busy nor loading."""
    state = two()
    (row,) = told(state, "beta")["evicts"]
    assert (row["replica"], row["when"]) == ("alpha-2", "now")
    assert row["why"].startswith("makes room for beta")
    state = observe(state, DozeBegun("inc-alpha-2", "it goes to sleep"), T)
    routed = observe(state, Published(7, frozenset(), frozenset({"inc-alpha-2"})), T)
    falling = observe(routed, Turned("box1", ("inc-alpha-2", 0), "asleep"), T)
    assert [r["when"] for r in told(falling, "beta")["evicts"]] == ["ends"]


def test_a62_a_sleeper_is_woken_or_said_to_wait() -> None:
    said = told(asleep_world(sleeper()), "alpha")
    assert (said["state"], said["profile"]) == ("loading", "main")
    assert "it sleeps on box1" in said["why"]
    paused = observe(asleep_world(sleeper()), Withheld("a plan is required"), T)
    assert told(paused, "alpha")["state"] == "waits"
    said = told(asleep_world(sleeper(), other(22)), "alpha")
    assert said["state"] != "loading", said
    assert "GiB free" in said["why"]


@scenario
async def test_what_fits_nowhere_failed_or_is_unknown_is_said(bench: Bench) -> None:
    catalog(bench)
    async with bench.running() as control:
        await met(bench)
        said = await bench.post(WAKE.format("huge"), {"dry_run": True})
        assert said["state"] == "no_room"
        assert "host memory: 1.5 of 1.5 GiB free, 900.0 needed" in said["why"]
        gone = Failure("i", "main", control.now().mono, "exit 1", gave_up=True)
        control.state = replace(control.state, failures={"beta": (gone,)})
        said = await bench.post(WAKE.format("beta"))
        assert said["state"] == "failed"
        assert "llmgw clear beta lets it start again" in said["why"]
        error = (await bench.post(WAKE.format("bta"), status=404))["error"]
        assert (error["code"], error["hint"]) == (
            "not_found",
            "did you mean beta? `llmgw status` shows what there is",
        )
        assert "is needed" in (await bench.post(WAKE.format(""), status=400))["error"]["message"]


def ended(state: State, n: int, now: float, **k: Any) -> State:
    end = shard("alpha-9/0", incarnation=f"i{n}", state="failed", error="exit 1")
    return observe(state, ShardsChanged("box1", (replace(end, **k),)), now)


def test_a67_what_is_known_of_the_last_try_is_said_with_the_next_one() -> None:
    """It "starts", exit 0, and a moment later it was refused again for the same file: nobody was told."""
    fresh = running(world_of(model("alpha")), node("box1"))
    assert told(fresh, "alpha", 2.0)["why"] == "woken 0 s ago, 0 running; fits box1 on its CPU"
    no = Refusal(seq=1, shard="alpha-9/0", incarnation="new", reason="no_weights", why=ABSENT)
    state = observe(place_at(fresh, "box1"), ShardsChanged("box1", refused=(no,)), 2.0)
    said = told(state, "alpha", 3.0)
    assert said["state"] == "failed"
    assert said["why"].count(ABSENT) == 1
    said = told(observe(state, Tick(), 100.0), "alpha", 100.0)
    assert said["state"] == "starts"
    assert said["why"].endswith(f"on its CPU; it was tried 98 s ago: {ABSENT}")
    said = told(ended(fresh, 1, 2.0), "alpha", 3.0)
    assert said["state"] == "starts"
    assert said["why"].endswith("on its CPU; it was tried 1 s ago: exit 1")
    assert told(observe(state, Cleared("alpha"), 3.0), "alpha", 3.0) == told(fresh, "alpha", 3.0)


def test_a67_a_back_off_is_said_with_its_reason_and_with_what_is_in_the_way_beside_it() -> None:
    state = running(world_of(model("alpha")), node("box1"))
    for n in range(3):
        state = ended(state, n, 2.0)
    said = told(state, "alpha", 3.0)
    assert said["state"] == "waits"
    assert said["why"] == "woken 0 s ago, 0 running; backing off 9 s after 3 failures: exit 1"
    said = told(observe(state, Cordoned("box1", "", "by her"), 3.0), "alpha", 3.0)
    assert said["why"].endswith("exit 1; nor would it find a place now: box1: is drained by her")
    again = shard("alpha-9/0", state="pending", attempt=3, error="exit 2")
    state = observe(state, ShardsChanged("box1", (again,)), 3.0)
    said = told(state, "alpha", 3.0)
    assert said["state"] == "loading"
    assert said["why"] == "alpha-9/0 on box1 is starting; attempt 3, before: exit 2"
    up = observe(state, ShardsChanged("box1", (replace(again, state="ready"),)), 4.0)
    assert told(up, "alpha", 5.0)["why"] == "alpha-9/0 on box1 is ready"


@scenario
async def test_while_settling_it_waits_and_says_for_whom(bench: Bench) -> None:
    catalog(bench)
    async with bench.running():
        await met(bench)
    async with bench.running():
        said = await bench.post(WAKE.format("alpha"))
        assert (said["state"], said["why"]) == (
            "settling",
            "settling is not over, it waits for box1",
        )


@scenario
async def test_a22_a_restart_of_control_forgets_no_wish(bench: Bench) -> None:
    catalog(bench)
    async with bench.running():
        agent = await met(bench)
        await bench.post("/api/v1/pause")
        await agent.register()
        agent.runs(engine("alpha-1"))
        await agent.register()
        await bench.serves(65, agent, in_flight={"alpha-1": 1})
        await bench.post(WAKE.format("beta"))
        woken_s = bench.control.state.woken_s["beta"]
        await bench.serves(30, agent, in_flight={"alpha-1": 1})
    async with bench.running(crash=True):
        await agent.register()
        assert abs(bench.control.state.woken_s["beta"] - woken_s) < 1.0
        await bench.post("/api/v1/models/beta/stop")
        assert bench.control.state.woken_s == {}


@scenario
async def test_a64_who_asks_for_what_fits_nowhere_reads_it_in_the_table(bench: Bench) -> None:
    catalog(bench)
    async with bench.running():
        agent = await met(bench)
        await bench.demand(1, waiting={"huge": 1})
        table = await bench.get("/gateway/v1/routes?version=0")
        assert "900.0 needed" in table["models"]["huge"]["no_room"]
        assert table["models"]["huge"]["status"] == "unloaded"
        assert table["models"]["alpha"]["no_room"] == ""
        await bench.demand(2)
        await agent.tell()
        await bench.later(1)
        table = await bench.get("/gateway/v1/routes?version=0")
        assert table["models"]["huge"]["no_room"] == ""
