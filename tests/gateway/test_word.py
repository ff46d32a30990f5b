"""A gateway that no control answers asks nothing new of what may be put to sleep, until it is told what sleeps now."""

import asyncio
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from llmgw.core.types.routes import (
    GATEWAY_GONE_S,
    GATEWAY_WORD_S,
    Heard,
    RouteModel,
    RouteReplica,
    RouteTable,
)
from llmgw.gateway import feed
from llmgw.gateway.process import _first_table
from llmgw.gateway.upstream import CONNECT_S
from llmgw.gateway.word import Word
from llmgw.wire import encode
from tests.gateway.fake_control import fake_control
from tests.gateway.peers import Talk, request, silence
from tests.gateway.rig import Rig, loaded, rig, run, table
from tests.gateway.test_balance import model, target
from tests.gateway.test_feed import linked
from tests.gateway.test_waiting import error_of

ASK = {"model": "m"}
STREAM = {"model": "m", "stream": True}


def sleeper(name: str) -> RouteReplica:
    return RouteReplica(replica=name, incarnation=name, endpoint="http://10.0.0.1:1", sleeps=True)


def word(version: int = 5) -> Word:
    """Given at 100 with the table in use."""
    given = Word(0.0)
    given.heard(100.0, Heard(version=version), version, 101.0)
    assert not given.lapsed
    return given


def lapsed(given: Word, now: float) -> bool:
    given.look(now)
    return given.lapsed


def test_it_ends_well_before_control_counts_the_gateway_out() -> None:
    """Two connections may be dialled for one choice, and control heard later than we sent."""
    assert GATEWAY_WORD_S + 2 * CONNECT_S + feed.POST_S < GATEWAY_GONE_S


def test_it_counts_from_when_that_was_sent_which_was_answered() -> None:
    given = word()
    assert given.until == 100.0 + GATEWAY_WORD_S
    given.heard(130.0, Heard(version=5), 5, 135.0)
    assert given.until == 130.0 + GATEWAY_WORD_S
    given.heard(120.0, Heard(version=5), 5, 136.0)
    assert given.until == 130.0 + GATEWAY_WORD_S, "of two controls the slower one"
    assert [lapsed(given, given.until - left_s) for left_s in (0.1, 0.0)] == [False, True]


@pytest.mark.parametrize("said", [Heard(version=4), Heard(version=9, leader=False), Heard()])
def test_whoever_stands_by_has_no_word_to_give(said: Heard) -> None:
    """The one that leads may be putting it to sleep meanwhile: it does not hear of us by way of the other."""
    given = word()
    given.heard(140.0, said, 5, 141.0)
    assert given.until == 100.0 + GATEWAY_WORD_S


def test_before_it_lapses_a_newer_table_may_be_on_its_way() -> None:
    """Control waits until we say that we use it."""
    given = word()
    given.heard(120.0, Heard(version=6), 5, 121.0)
    assert given.until == 120.0 + GATEWAY_WORD_S


def test_after_it_lapsed_what_went_to_sleep_is_in_the_table_that_control_has_by_now() -> None:
    given = word()
    given.heard(400.0, Heard(version=7), 5, 401.0)
    assert lapsed(given, 401.0)
    given.uses(6)
    assert lapsed(given, 402.0)
    given.uses(7)
    assert not lapsed(given, 402.0)
    assert given.until == 400.0 + GATEWAY_WORD_S


def test_where_no_control_runs_nobody_puts_anything_to_sleep() -> None:
    """F19: with control down for a day engines that can sleep are served as any other."""
    given = word()
    for at in range(110, 90_000, 5):
        given.alone(at, at + 0.1)
    assert given.until == 89_995 + GATEWAY_WORD_S
    assert not lapsed(given, 90_000)


def test_a_process_that_starts_with_control_down_goes_by_its_disk() -> None:
    given = Word(100.0)
    assert lapsed(given, 100.4)
    given.alone(100.5, 100.6)
    assert not lapsed(given, 100.6)
    given.heard(101.0, Heard(version=7), 5, 101.1)
    assert not lapsed(given, 101.1)


def test_after_a_silence_a_control_that_has_ended_since_proves_nothing() -> None:
    """It may have put it to sleep before."""
    given = word()
    given.alone(400.0, 400.1)
    assert lapsed(given, 400.1)
    given.heard(401.0, Heard(version=5), 5, 401.1)
    assert not lapsed(given, 401.1)


def test_the_choice_is_by_the_moment_not_by_the_last_look() -> None:
    """A process that was stopped for a minute sends nothing before its sweeper has run."""
    for replicas in ((sleeper("a"),), (sleeper("a"), sleeper("b"))):
        t = target(*replicas)
        t.endpoints[0].word.heard(10.0, Heard(), 0, 10.0)
        assert t.choose(10.0 + GATEWAY_WORD_S - 0.1) is not None
        assert t.choose(10.0 + GATEWAY_WORD_S) is None


def test_what_never_sleeps_is_chosen_whoever_is_silent() -> None:
    t = target(sleeper("a"), RouteReplica(replica="b", endpoint="http://10.0.0.1:2"))
    assert {e.replica for _ in range(4) if (e := t.choose(1e9)) is not None} == {"b"}
    assert (t.ready, t.failing, [e.replica for e in t.unsure]) == (1, "", ["a"])
    assert not t.others(t.endpoints[1])


def replicas(world: Rig) -> list[str]:
    return [e.replica for e in world.gateway.fleet.endpoints()]


@pytest.mark.parametrize("partial", [False, True])
def test_after_a_silence_the_old_table_proves_nothing_of_what_may_sleep(partial: bool) -> None:
    """Whoever led before may have put it to sleep, and waited for us no more; the next one has not heard of it yet."""

    async def scenario() -> None:
        async with rig() as world:
            awake = RouteReplica(replica="b", incarnation="b", endpoint="http://10.0.0.1:2")
            old = RouteTable(version=5, models={"m": model(sleeper("a"), awake)})
            said = () if partial else (sleeper("a"), awake)
            guess = tuple(
                RouteReplica(
                    replica=r.replica,
                    incarnation=r.replica,
                    endpoint=r.endpoint,
                    sleeps=r.sleeps,
                    unheard=r.sleeps,
                )
                for r in said
            )
            new = RouteTable(version=6, partial=partial, models={"m": model(*guess)})
            for silent_s, left in ((GATEWAY_WORD_S - 1, ["a", "b"]), (GATEWAY_WORD_S, ["b"])):
                world.use(old)
                world.gateway.heard(world.clock(), Heard(version=5))
                world.pass_time(silent_s)
                world.use(new)
                assert sorted(replicas(world)) == left

    run(scenario())


async def cut_off(world: Rig, version: int = 1) -> None:
    """Nobody has answered for as long as it takes."""
    world.gateway.heard(world.clock(), Heard(version=version))
    world.pass_time(GATEWAY_WORD_S)


def test_a_request_waits_and_is_told_why_and_one_in_flight_goes_on() -> None:
    silent = asyncio.Event()

    async def slow(talk: Talk) -> None:
        await talk.open_stream()
        await talk.event("one")
        await silent.wait()
        await talk.event("two")
        await talk.end_stream()

    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(slow)
            world.use(table(1, m=loaded(engine.replica(sleeps=True), wait_timeout_s=100.0)))
            world.gateway.heard(world.clock(), Heard(version=1))
            client = await world.client()
            client.send(request(STREAM))
            await world.until(lambda: world.in_flight() == {"e1": 1})
            await client.head()
            world.pass_time(GATEWAY_WORD_S)
            assert world.gateway.fleet.word.lapsed
            silent.set()
            assert b"".join([p async for p in client.chunks()]) == b"data: one\n\ndata: two\n\n"
            stream, plain = await world.client(), await world.client()
            plain.send(request(ASK))
            stream.send(request(STREAM))
            await world.until(lambda: world.waiting() == {"m": 2})
            world.pass_time(1.5)
            await stream.head()
            pieces = stream.chunks()
            assert await anext(pieces) == b": llmgw reconnecting m 2s\n\n"
            world.pass_time(98.5)
            answer = await plain.answer()
            assert answer.status == 503
            assert answer.headers["retry-after"] == "5"
            said = answer.error
            assert said["code"] == "model_not_ready"
            assert (
                "model 'm' was not asked in 100 s: e1 may have been put to sleep" in said["message"]
            )
            assert "no control that leads has answered this gateway for 145 s" in said["message"]
            assert "llmgw control" in said["message"] + said.get("hint", "")
            assert error_of(b"".join([p async for p in pieces]))["code"] == "model_not_ready"
            assert len(engine.asked) == 1

    run(scenario())


def test_those_that_wait_are_served_as_soon_as_control_has_given_its_word_again() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine()
            world.use(table(1, m=loaded(engine.replica(sleeps=True))))
            await cut_off(world)
            client = await world.client()
            client.send(request(ASK))
            await world.until(lambda: world.waiting() == {"m": 1})
            world.gateway.heard(world.clock(), Heard(version=2))
            assert world.waiting() == {"m": 1}, "it may sleep by that table"
            world.use(table(2, m=loaded(engine.replica(sleeps=True))))
            assert (await client.answer()).status == 200
            await cut_off(world, 2)
            client.send(request(ASK))
            await world.until(lambda: world.waiting() == {"m": 1})
            world.gateway.heard(world.clock(), Heard(version=2))
            assert (await client.answer()).status == 200

    run(scenario())


def test_a_connection_that_came_too_late_is_not_used() -> None:
    """The process was held up while it was made: the choice is older than control's patience by now."""

    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(silence)
            world.use(table(1, m=loaded(engine.replica(sleeps=True), wait_timeout_s=100.0)))
            world.gateway.heard(world.clock(), Heard(version=1))
            dial = world.dialer._dial
            world.dialer._spawn = lambda coroutine: coroutine.close()
            client = await world.client()
            client.send(request(ASK))
            await world.until(lambda: world.in_flight() == {"e1": 1})
            (connection,) = world.gateway.connections
            world.clock.now += GATEWAY_WORD_S
            (endpoint,) = world.gateway.fleet.endpoints()
            await dial(endpoint, connection._exchange)
            assert world.waiting() == {"m": 1}
            world.pass_time(100)
            assert (await client.answer()).status == 503
            assert not engine.asked

    run(scenario())


def test_a_gateway_that_starts_from_its_disk_asks_no_sleeper_before_control_has_answered(
    tmp_path: Path,
) -> None:
    """F19: what never sleeps is served at once."""

    async def scenario() -> None:
        async with fake_control() as control:
            async with rig() as world:
                one, two = await world.engine(name="e1"), await world.engine(name="e2")
                sleepy, other = loaded(one.replica(sleeps=True)), loaded(two.replica())
                await control.publish(table(9, m=sleepy, n=other))
                async with linked(world, tmp_path, control) as link:
                    await control.demand(table=9)
                    assert (await world.ask(ASK)).status == 200, "in word with control"
                    await link.on_disk(9)
                ports = one.port, two.port
            await control.stop()
            async with rig() as world:
                one = await world.engine(name="e1", port=ports[0])
                two = await world.engine(name="e2", port=ports[1])
                mute = socket.create_server(("127.0.0.1", urlsplit(control.url).port or 0))
                async with linked(world, tmp_path, control):
                    assert (await world.ask({"model": "n"})).status == 200
                    client = await world.client()
                    client.send(request(ASK))
                    await world.until(lambda: world.waiting() == {"m": 1})
                    mute.close()
                    await control.start()
                    assert (await client.answer()).status == 200

    run(scenario())


def test_and_asks_it_at_once_where_no_control_runs(tmp_path: Path) -> None:
    """F19: control is down, and the gateway was restarted."""

    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            engine = await world.engine()
            told = table(9, m=loaded(engine.replica(sleeps=True)))
            (tmp_path / "routes.json").write_bytes(encode(told))
            await control.stop()
            async with linked(world, tmp_path, control):
                assert (await world.ask(ASK)).status == 200
            await control.start()

    run(scenario())


def test_a_new_process_asks_control_first_or_the_first_clients_would_be_too_many(
    tmp_path: Path,
) -> None:
    """While nothing is usable one queue's worth may wait: behind a control that is there nobody has to."""

    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            engine = await world.engine()
            told = table(9, m=loaded(engine.replica(sleeps=True), queue=0))
            (tmp_path / "routes.json").write_bytes(encode(told))
            await control.publish(told)
            async with linked(world, tmp_path, control) as link:
                assert world.gateway.word_due
                await _first_table(world.gateway, link.feed)
                await world.until(lambda: not world.gateway.word_due)
                assert (await world.ask(ASK)).status == 200

    run(scenario())


def test_it_says_once_that_it_is_cut_off_and_once_that_it_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            engine = await world.engine()
            await control.publish(table(1, m=loaded(engine.replica(sleeps=True))))
            async with linked(world, tmp_path, control) as link:
                await world.until(lambda: not world.gateway.fleet.word.lapsed)
                await world.until(lambda: world.gateway.fleet.table)
                control.stands_by = True
                await control.demand(table=1)
                world.pass_time(GATEWAY_WORD_S)
                lapsed, again = (
                    "what may sleep is asked nothing new",
                    "control has given its word again",
                )
                await world.until(lambda: link.log.count(lapsed))
                (facts,) = [f for e, f in link.log.lines if e == lapsed]
                assert facts["replicas"] == ["e1"]
                assert "no control that leads has answered for 4" in facts["why"]
                for _ in range(2):
                    await control.demand(table=1)
                assert link.log.count(lapsed) == 1
                control.stands_by = False
                await world.until(lambda: any(again in e for e, _ in link.log.lines))

    run(scenario())


def test_an_answer_that_nobody_can_read_is_no_word(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control() as control, rig() as world:
            await control.publish(table(1, m=RouteModel()))
            control.garbled = True
            async with linked(world, tmp_path, control) as link:
                await world.until(lambda: link.log.count("control is away"))
                assert world.gateway.fleet.word.lapsed

    run(scenario())
