"""Replicas that are much slower to their first byte than their siblings."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.types.routes import RouteReplica, RouteTable
from llmgw.gateway.balance import Fleet, Target
from llmgw.gateway.endpoint import WINDOW, Endpoint
from llmgw.gateway.outlier import LEAST, SHARE, WINDOW_S, judge
from tests.gateway.peers import Talk, hello
from tests.gateway.rig import loaded, rig, run, table


def replica(name: str, profile: str = "p") -> RouteReplica:
    return RouteReplica(replica=name, endpoint="http://10.0.0.1:1", profile=profile)


def endpoint(name: str, *seconds: float, profile: str = "p", at: float = 100.0) -> Endpoint:
    made = Endpoint(replica(name, profile))
    made.firsts.extend((at, s) for s in seconds)
    return made


def slow(*endpoints: Endpoint, now: float = 100.0) -> str:
    assert judge(endpoints, now) is any(e.slow for e in endpoints)
    return "".join(e.replica for e in endpoints if e.slow)


def test_three_times_the_others_and_a_quarter_of_a_second_more() -> None:
    n = LEAST
    assert slow(endpoint("a", *[0.2] * n), endpoint("b", *[0.7] * n)) == "b"
    assert slow(endpoint("a", *[0.2] * n), endpoint("b", *[0.6] * n)) == ""
    assert slow(endpoint("a", *[0.01] * n), endpoint("b", *[0.25] * n)) == "", (
        "too little to matter"
    )
    three = [endpoint(x, *[s] * n) for x, s in (("a", 1.0), ("b", 9.0), ("c", 9.0))]
    assert slow(*three) == "", "most are so: it is the fast one that is odd"
    three = [endpoint(x, *[s] * n) for x, s in (("a", 1.0), ("b", 2.0), ("c", 9.0))]
    assert slow(*three) == "c"


def test_a_few_long_prompts_prove_nothing() -> None:
    n = LEAST
    assert slow(endpoint("a", *[0.2] * n), endpoint("b", *[0.2] * n, *[30.0] * (n - 1))) == ""
    assert slow(endpoint("a", *[0.2] * n), endpoint("b", *[9.0] * (n - 1))) == "", "too few"
    old = endpoint("b", *[9.0] * n, at=100.0 - WINDOW_S - 1)
    assert slow(endpoint("a", *[0.2] * n), old) == "", "too old"


def test_another_profile_is_no_sibling_and_one_alone_is_never_slow() -> None:
    n = LEAST
    assert slow(endpoint("a", *[0.2] * n), endpoint("b", *[9.0] * n, profile="cpu")) == ""
    was = endpoint("b", *[9.0] * n)
    was.slow = True
    assert slow(was) == ""


def test_it_is_slow_until_it_is_clearly_better() -> None:
    fast, other = endpoint("a", *[1.0] * LEAST), endpoint("b")
    said = []
    for seconds in (2.9, 3.1, 2.9, 2.1, 3.1, 1.9, 2.9, 3.1):
        other.firsts.clear()
        other.firsts.extend([(100.0, seconds)] * LEAST)
        said.append(bool(slow(fast, other)))
    assert said == [False, True, True, True, True, False, False, True]
    other.firsts.clear()
    assert slow(fast, other) == "b", "no news: as before"


@given(st.lists(st.lists(st.floats(0, 1000), max_size=WINDOW), min_size=2, max_size=5))
def test_never_all_of_them(times: list[list[float]]) -> None:
    assert len(slow(*(endpoint(str(n), *t) for n, t in enumerate(times)))) < len(times)


def target(names: str, **more: int) -> Target:
    fleet = Fleet()
    fleet.apply(RouteTable(models={"m": loaded(*map(replica, names), **more)}), 0.0)
    return fleet.targets["m"]


def test_a_slow_one_gets_less_and_never_nothing() -> None:
    t = target("abc", max_in_flight=4)
    a, b, c = t.endpoints
    for e, seconds in ((a, 0.1), (b, 0.1), (c, 2.0)):
        e.firsts.extend([(100.0, seconds)] * LEAST)
    t.watch(100.0)
    assert (t.slow, c.slow) == (True, True)
    counts = Counter(got.replica for _ in range(10 * SHARE) if (got := t.choose(100.0)))
    assert counts["c"] == 10, "also where nothing is in flight"
    c.in_flight = 1
    assert {t.choose(100.0) for _ in range(3 * SHARE)} == {a}, "never more than the others"
    a.in_flight = b.in_flight = 4
    assert t.choose(100.0) is c, "the others are full"
    for e in (a, b, c):
        e.in_flight = 0
    c.firsts.extend([(101.0, 0.1)] * WINDOW)
    t.watch(101.0)
    assert not t.slow


def test_where_prompts_choose_the_replica_time_does_not() -> None:
    t = target("ab", sticky_prefix_bytes=64)
    for e, seconds in zip(t.endpoints, (0.1, 9.0), strict=True):
        e.firsts.extend([(100.0, seconds)] * LEAST)
    t.watch(100.0)
    assert not t.slow


def test_what_is_measured() -> None:
    """From the question to its first byte, without the wait before it; not whole answers of what could stream."""

    async def scenario() -> None:
        async with rig() as world:

            async def slowly(talk: Talk) -> None:
                world.clock.now += 2
                await hello(talk)

            engines = [await world.engine(slowly, "a"), await world.engine(slowly, "b")]
            world.use(table(m=loaded(*(e.replica() for e in engines))))
            a, _ = world.gateway.fleet.endpoints()
            ask = {"model": "m"}
            await world.ask(ask)
            assert not a.firsts
            await world.ask({**ask, "stream": True})
            await world.ask(ask, "/v1/embeddings")
            assert [seconds for _, seconds in a.firsts] == [2.0, 2.0]
            world.use(table(2, m=loaded(engines[0].replica())))
            await world.ask({**ask, "stream": True})
            assert len(a.firsts) == 2, "alone it is compared with nobody"

    run(scenario())
