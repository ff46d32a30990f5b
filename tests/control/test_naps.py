"""Orders to sleep and to wake: counted before they are sent, repeated until their agent has them, told once."""

from __future__ import annotations

from llmgw.control.apply import Performer
from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import Command
from llmgw.core.types.plan import Plan
from llmgw.core.types.routes import RouteModel, RouteTable
from llmgw.core.types.sleep import Asleep, SleepShard, WakeShard
from llmgw.core.types.state import Published, ShardsChanged, State
from llmgw.render.status import page
from llmgw.wire.plan import plan_document
from llmgw.wire.status import Seen, status_document
from tests.core.test_asleep import INC, RESTS, T, asked, nap, sleeper, up, world
from tests.core.world import GIB

HANDS = Performer(reachable=lambda _: True, wall=1_767_225_600.0)


def done(state: State, plan: Plan) -> tuple[State, list[Command]]:
    out = HANDS.apply(state, plan, T)
    return out.state, [command for _, command in out.commands]


def test_a65_a_sleep_goes_from_the_routes_to_the_order_to_the_word_of_its_agent() -> None:
    state, sent = done(world(up()), decide(world(up()), T))
    assert (set(state.dozing), sent) == ({INC}, [])
    state = observe(state, Published(7, frozenset({INC}), frozenset({INC})), T)
    plan = decide(state, T + 1)
    assert nap(plan).step == "sleep"
    state, sent = done(state, plan)
    order = SleepShard(shard="alpha-1/0", incarnation=INC, reason="idle")
    assert sent == [order]
    state, sent = done(state, decide(state, T + 2))
    assert sent == [order], "F79: repeated until it is heard"
    state = observe(state, ShardsChanged("box1", shards=(sleeper(asleep=Asleep()),)), T + 3)
    assert done(state, decide(state, T + 3))[1] == []


def test_one_that_is_wanted_again_is_routed_again_and_ordered_nothing() -> None:
    state, _ = done(world(up()), decide(world(up()), T))
    state = asked(state)
    state, sent = done(state, decide(state, T))
    assert (state.dozing, sent) == ({}, [])


def test_a_wake_is_repeated_until_it_is_heard() -> None:
    state = asked(world(sleeper()))
    order = WakeShard(shard="alpha-1/0", incarnation=INC, reason="wanted")
    for _ in range(2):
        state, sent = done(state, decide(state, T))
        assert sent == [order]
    state = observe(state, ShardsChanged("box1", shards=(up(state="loading"),)), T)
    assert done(state, decide(state, T))[1] == []


def test_a52_naps_are_in_no_dry_run_and_a_wake_is() -> None:
    doc = plan_document(decide(world(up()), T), source="control", generated_at="now")
    assert (doc["actions"], doc["exit_code"]) == ([], 0)
    doc = plan_document(decide(asked(world(sleeper())), T), source="control", generated_at="now")
    (row,) = doc["actions"]
    assert (row["action"], row["replica"], row["node"], row["disturbs"]) == (
        *("wake", "alpha-1", "box1"),
        False,
    )
    assert doc["summary"]["wake"] == 1


def test_status_says_who_sleeps_and_what_came_back() -> None:
    state = world(sleeper())
    why = "alpha-1 is asleep on box1, 8.0 GiB of GPU memory freed, 2.0 GiB still used"
    told = RouteModel(status="unloaded", why=why)
    seen = Seen(
        state=state,
        found=survey(state),
        plan=decide(state, T),
        routes=RouteTable(models={"alpha": told}),
        now=T,
        decided_s=T,
        iso=lambda s: f"2026-01-01T00:00:{s % 60:06.3f}Z",
    )
    doc = status_document(seen, name="c", lease="file")
    alpha = next(m for m in doc["models"] if m["name"] == "alpha")
    assert (alpha["state"], alpha["why"]) == ("asleep", why)
    (replica,) = doc["replicas"]
    assert replica["state"] == "asleep"
    assert replica["shards"][0]["asleep"] == {"verified": True, "freed": 8 * GIB, "rest": 2 * GIB}
    assert RESTS.rest_bytes == 2 * GIB
    rows = [part for part in page(doc, wide=True, now_s=0.0) if not isinstance(part, str)]
    row = next(r for r in rows[1].rows if r[0] == "alpha")
    assert "asleep" in row
    assert "8.0 GiB freed" in row
    assert row[-1] == "8.0 GiB freed, 2.0 GiB still used"
