"""The choice of a replica, and tables folded in."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.types.routes import RouteKey, RouteModel, RouteReplica, RouteTable
from llmgw.gateway.balance import Fleet, Target, merged
from llmgw.gateway.endpoint import Endpoint


def replica(name: str, **more: Any) -> RouteReplica:
    return RouteReplica(replica=name, endpoint=f"http://10.0.0.1:{18000 + len(name)}", **more)


def model(*replicas: RouteReplica, **more: Any) -> RouteModel:
    return RouteModel(status="loaded", replicas=replicas, **more)


def target(*replicas: RouteReplica, **more: Any) -> Target:
    fleet = Fleet()
    fleet.apply(RouteTable(models={"m": model(*replicas, **more)}), 0.0)
    return fleet.targets["m"]


def test_least_in_flight() -> None:
    t = target(replica("a"), replica("b"))
    for _ in range(4):
        chosen = t.choose(0.0)
        assert chosen is not None
        chosen.in_flight += 1
    assert [e.in_flight for e in t.endpoints] == [2, 2]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=4))
def test_profiles_share_by_weight_whatever_is_in_flight(weights: list[int]) -> None:
    rounds = max(sum(weights), 1)
    t = target(*(replica(f"r{i}", profile=f"p{i}", weight=w) for i, w in enumerate(weights)))
    counts: Counter[str] = Counter()
    for _ in range(rounds):
        chosen = t.choose(0.0)
        assert chosen is not None
        chosen.in_flight += 1
        counts[chosen.profile] += 1
    if sum(weights):
        assert [counts[f"p{i}"] for i in range(len(weights))] == weights


def test_within_the_profile_whose_turn_it_is_the_least_busy() -> None:
    t = target(replica("a", profile="p"), replica("b", profile="p"), replica("c", profile="q"))
    t.endpoints[0].in_flight = 3
    t.endpoints[2].in_flight = 3
    chosen = {e.replica for e in (t.choose(0.0), t.choose(0.0)) if e is not None}
    assert chosen == {"b", "c"}


def test_draining_full_failing_and_tried_ones_are_left_out() -> None:
    t = target(
        replica("a", state="draining"), replica("b"), replica("c"), replica("d"), max_in_flight=2
    )
    _, b, c, d = t.endpoints
    b.in_flight = 2
    c.breaker.failed("refuses connections", 0.0)
    assert t.choose(0.0) is d
    assert t.choose(0.0, (d,)) is None
    assert t.choose(1.0, (d,)) is c


def test_one_replica_obeys_the_same_rules() -> None:
    t = target(replica("a"), max_in_flight=1)
    (a,) = t.endpoints
    assert t.choose(0.0) is a
    assert t.choose(0.0, (a,)) is None
    a.in_flight = 1
    assert t.choose(0.0) is None


def test_failing_is_said_only_when_nobody_is_left() -> None:
    t = target(replica("a"), replica("b"))
    t.endpoints[0].breaker.failed("is away", 0.0)
    assert t.failing == ""
    assert target().failing == ""
    t.endpoints[1].breaker.failed("refuses connections", 0.0)
    assert t.failing == "is away"


class Waiter:
    who = "127.0.0.1"
    prefix: int | None = None

    def __init__(self) -> None:
        self.got: list[Endpoint] = []

    def assign(self, endpoint: Endpoint) -> None:
        endpoint.in_flight += 1
        self.got.append(endpoint)

    def tick(self, now: float) -> None: ...


def test_those_who_wait_are_served_in_order_as_places_come_free() -> None:
    t = target(replica("a"), max_in_flight=2)
    waiters = [Waiter() for _ in range(3)]
    for waiter in waiters:
        t.waiting.add(waiter)
    t.pump(0.0)
    assert [len(w.got) for w in waiters] == [1, 1, 0]
    t.endpoints[0].in_flight -= 1
    t.pump(0.0)
    assert not t.waiting


def test_room_is_a_queue_for_each_ready_replica_and_one_without_any() -> None:
    assert target(queue=3).room == 3
    assert target(queue=0).room == 1, "or nothing would wake it"
    assert target(replica("a"), queue=0).room == 0
    assert target(replica("a"), replica("b"), replica("c", state="draining"), queue=3).room == 6


def test_eta_follows_progress() -> None:
    fleet = Fleet()
    loading = RouteModel(status="loading", progress=0.25)
    fleet.apply(RouteTable(models={"m": loading}), 10.0)
    t = fleet.targets["m"]
    assert t.eta_s(20.0) == 30.0
    fleet.apply(RouteTable(models={"m": RouteModel(status="loading", progress=None)}), 20.0)
    assert t.eta_s(20.0) is None


def test_counters_live_on_from_table_to_table() -> None:
    fleet = Fleet()
    first = RouteTable(version=1, models={"m": model(replica("a"))})
    fleet.apply(first, 0.0)
    (a,) = fleet.targets["m"].endpoints
    a.in_flight = 2
    fleet.apply(RouteTable(version=2, models={"m": model(replica("a", state="draining"))}), 1.0)
    assert fleet.targets["m"].endpoints == [a]
    assert a.draining
    demand = fleet.demand("g", 1, 2.0)
    assert (demand.table, demand.in_flight) == (2, {"a": 2})


def test_a_replica_that_left_the_table_counts_until_its_last_request() -> None:
    fleet = Fleet()
    fleet.apply(RouteTable(models={"m": model(replica("a"))}), 0.0)
    (a,) = fleet.targets["m"].endpoints
    a.in_flight = 2
    gone = fleet.apply(RouteTable(), 1.0)
    assert [t.name for t in gone] == ["m"]
    assert gone[0].gave_up
    assert fleet.demand("g", 1, 1.0).in_flight == {"a": 2}
    assert not a.left(2.0)
    assert a.left(2.0), "control waits for this one"
    assert fleet.demand("g", 2, 2.0).in_flight == {}


def test_another_incarnation_is_another_replica() -> None:
    fleet = Fleet()
    fleet.apply(RouteTable(models={"m": model(replica("a", incarnation="1"))}), 0.0)
    (before,) = fleet.targets["m"].endpoints
    before.breaker.failed("refuses connections", 0.0)
    fleet.apply(RouteTable(models={"m": model(replica("a", incarnation="2"))}), 0.0)
    (after,) = fleet.targets["m"].endpoints
    assert after is not before
    assert before.gone
    assert not after.breaker.open


def test_demand_says_all_there_is() -> None:
    fleet = Fleet()
    fleet.apply(RouteTable(version=7, models={"m": model(replica("a"), replica("b"))}), 0.0)
    a, b = fleet.targets["m"].endpoints
    a.in_flight = 1
    assert not a.left(5.0)
    b.breaker.failed("is away", 5.0)
    fleet.targets["m"].waiting.add(Waiter())
    demand = fleet.demand("g", 3, 6.5)
    assert demand.last_byte == {"a": 1.5}
    assert demand.waiting == {"m": 1}
    assert demand.breaker == {"b": "open"}
    assert (demand.gateway, demand.n, demand.table) == ("g", 3, 7)


KEY = RouteKey(id="k", sha256="0" * 64)
OLD = RouteTable(
    version=1,
    models={"m": model(replica("a"), replica("b")), "n": model(replica("c"))},
    keys=(KEY,),
)


def names(table: RouteTable) -> dict[str, list[str]]:
    return {name: [r.replica for r in m.replicas] for name, m in table.models.items()}


def test_a_partial_table_takes_nothing_away() -> None:
    """A50: while control settles it has not heard of everybody, and that is no order."""
    new = RouteTable(
        version=2, partial=True, models={"m": model(replica("b", state="draining"), replica("d"))}
    )
    table = merged(OLD, new)
    assert names(table) == {"m": ["b", "d", "a"], "n": ["c"]}
    assert table.models["m"].replicas[0].state == "draining"
    assert (table.version, table.keys) == (2, (KEY,))


def test_a_model_that_a_partial_table_calls_unloaded_stays_as_it_was() -> None:
    unloaded = RouteModel(status="unloaded", why="settling")
    table = merged(OLD, RouteTable(version=2, partial=True, models={"m": unloaded}))
    assert table.models["m"].status == "loaded"
    assert names(table)["m"] == ["a", "b"]


def test_a_whole_table_is_taken_as_it_is() -> None:
    new = RouteTable(version=2, models={"n": model()})
    assert merged(OLD, new) is new


def guess(name: str, **more: Any) -> RouteReplica:
    return replica(name, incarnation=f"inc-{name}", unheard=True, **more)


def known(name: str, **more: Any) -> RouteReplica:
    return replica(name, incarnation=f"inc-{name}", **more)


@pytest.mark.parametrize("partial", [True, False])
def test_a63_of_what_was_not_heard_and_may_sleep_all_stays_as_it_is(partial: bool) -> None:
    """A new leader that no agent has reached: what serves is served on, what was put to sleep is not begun with."""
    old = RouteTable(version=1, models={"m": model(known("a"), known("b", state="draining"))})
    goes = guess("goes", state="draining")
    said = model(guess("a", weight=3), guess("b"), guess("asleep"), goes, known("d"))
    table = merged(old, RouteTable(version=2, partial=partial, models={"m": said}))
    assert table.models["m"].replicas == (
        known("a", weight=3),
        known("b", state="draining"),
        goes,
        known("d"),
    )
    assert (table.version, table.models["m"].status) == (2, "loaded")


@pytest.mark.parametrize("old", [RouteTable(), RouteTable(models={"m": model()})])
def test_a63_who_waits_for_what_may_sleep_reads_why(old: RouteTable) -> None:
    table = merged(old, RouteTable(version=2, models={"m": model(guess("a")), "n": model()}))
    assert table.models["m"].replicas == ()
    assert table.models["m"].status == "unloaded"
    assert "has not answered the control that leads now" in table.models["m"].why
    assert table.models["n"].status == "loaded"


@pytest.mark.parametrize("url", ["http://[::1]:18000", "http://box1:18000/"])
def test_endpoints_are_urls(url: str) -> None:
    endpoint = Endpoint(RouteReplica(replica="a", endpoint=url, api_key="k"))
    assert (endpoint.host, endpoint.port) in (("::1", 18000), ("box1", 18000))
    assert endpoint.authorization == b"authorization: Bearer k\r\n"


def test_prompts_that_begin_alike_meet_and_few_move_when_a_replica_comes_or_goes() -> None:
    four = target(*(replica(name) for name in "abcd"))
    homes = {p: four.choose(0.0, prefix=p) for p in range(400)}
    assert all(four.choose(0.0, prefix=p) is home for p, home in homes.items())
    counts = Counter(e.replica for e in homes.values() if e)
    assert all(60 < n < 140 for n in counts.values()), counts
    three = target(*(replica(name) for name in "abc"))
    for p, home in homes.items():
        now = three.choose(0.0, prefix=p)
        assert home
        assert now
        assert home.replica in {"d", now.replica}, "only those of the lost one have moved"


def test_a_prefix_that_everybody_sends_does_not_bury_one_replica() -> None:
    t = target(replica("a"), replica("b"), replica("c"))
    for _ in range(30):
        endpoint = t.choose(0.0, prefix=7)
        assert endpoint
        endpoint.in_flight += 1
    assert max(e.in_flight for e in t.endpoints) <= 13  # 30 / 3 * 1.25, rounded up
    home = max(t.endpoints, key=lambda e: e.in_flight)
    home.in_flight = 0
    assert t.choose(0.0, prefix=7) is home, "its own as soon as there is room"
    home.breaker.failed("refuses connections", 0.0)
    assert t.choose(0.0, prefix=7) is not home


def test_a64_demand_says_how_long_requests_have_waited_without_a_break() -> None:
    fleet = Fleet()
    fleet.apply(RouteTable(version=7, models={"m": model()}), 0.0)
    waiting = fleet.targets["m"].waiting
    first, second = Waiter(), Waiter()
    waiting.add(first)
    assert fleet.demand("g", 1, 6.5).waited == {}, "control is told of it only now"
    waiting.add(second)
    waiting.remove(first)
    assert fleet.demand("g", 2, 8.0).waited == {"m": 1.5}
    waiting.remove(second)
    assert fleet.demand("g", 3, 9.0).waited == {}
    waiting.add(first)
    assert fleet.demand("g", 4, 20.0).waited == {}
