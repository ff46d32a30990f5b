"""WebSockets go through: asked as any request, then bytes both ways, in flight until one side ends."""

import hashlib
from typing import Any

import pytest

from llmgw.core.types.routes import RouteKey
from llmgw.gateway.http1 import Budget, RequestReader
from tests.gateway.peers import Client, Engine, Talk, request
from tests.gateway.rig import Rig, loaded, rig, run, table

REALTIME = "/v1/realtime?model=m"
#: RFC 6455 1.3, its own example
OFFER = {
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version": "13",
}
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
TAKEN = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
).encode()


async def echo(talk: Talk) -> None:
    """Takes the offer, and says all back in capitals."""
    await talk.say(TAKEN)
    while data := await talk.heard():
        await talk.say(data.upper())
    talk.left.set()


async def opened(world: Rig, path: str = REALTIME, **headers: str) -> Client:
    client = await world.client()
    client.send(request(None, path, "GET", **(OFFER | headers)))
    status, got = await client.head()
    assert status == 101
    assert got["sec-websocket-accept"] == ACCEPT
    assert got["upgrade"] == "websocket"
    assert got["connection"] == "Upgrade"
    return client


async def in_use(world: Rig, **more: Any) -> Engine:
    engine = await world.engine(echo)
    world.use(table(m=loaded(engine.replica(**more))))
    return engine


def test_bytes_go_both_ways_until_the_client_ends() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await in_use(world)
            client = await opened(world, x_own="1", origin="http://page")
            talk = await engine.talks.get()
            for word in (b"\x81\x05hello", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 400):
                client.send(word)
                assert await client.reader.readexactly(len(word)) == word.upper()
            assert world.in_flight() == {"e1": 1}
            await client.close()
            await talk.left.wait()
            await world.at_rest()
            (line,) = world.lines()
            assert (line["status"], line["end"], line["path"]) == (
                101,
                "client_left",
                "/v1/realtime",
            )
            assert line["bytes"] > 102_400
            asked = talk.asked
            assert asked.path == REALTIME
            assert asked.headers["sec-websocket-key"] == OFFER["sec-websocket-key"]
            assert asked.headers["upgrade"] == "websocket"
            assert asked.headers["connection"] == "Upgrade"
            assert asked.headers["x-own"] == "1"
            assert "content-length" not in asked.headers

    run(scenario())


@pytest.mark.parametrize("how", ["die", "hang_up"])
def test_the_end_of_the_engine_is_the_clients(how: str) -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def ends(talk: Talk) -> None:
                await talk.say(TAKEN + b"last")
                await talk.seen.wait()
                await getattr(talk, how)()

            engine = await world.engine(ends)
            world.use(table(m=loaded(engine.replica())))
            client = await opened(world)
            assert await client.until(b"last") == b"last"
            (await engine.talks.get()).seen.set()
            assert await client.rest() == b""
            await world.at_rest()
            (line,) = world.lines()
            assert line["end"] == "ok"

    run(scenario())


def test_what_was_said_last_arrives_before_the_end() -> None:
    """A Close frame, and more than fits in any buffer before it."""
    big = b"x" * (4 << 20)

    async def scenario() -> None:
        async with rig() as world:

            async def talks_and_goes(talk: Talk) -> None:
                await talk.say(TAKEN)
                await talk.say(big + b"\x88\x00")
                await talk.hang_up()

            engine = await world.engine(talks_and_goes)
            world.use(table(m=loaded(engine.replica())))
            client = await opened(world)
            assert await client.rest() == big + b"\x88\x00"

    run(scenario())


def test_a_reset_of_the_client_reaches_the_engine() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await in_use(world)
            client = await opened(world)
            client.reset()
            await (await engine.talks.get()).left.wait()

    run(scenario())


def test_bytes_that_come_with_the_heads_are_not_lost() -> None:
    """A client may not speak before the 101; one that does is heard by the engine, whatever it says."""

    async def scenario() -> None:
        async with rig() as world:
            engine = await in_use(world)
            client = await world.client()
            early = b"garbage \x00\xff GET /v1/models HTTP/1.1\r\n\r\n"
            client.send(request(None, REALTIME, "GET", **OFFER) + early)
            await client.head()
            assert await client.reader.readexactly(len(early)) == early.upper()
            assert len(engine.asked) == 1
            await client.close()

    run(scenario())


@pytest.mark.parametrize("cut", range(1, 230, 23))
def test_an_offer_may_come_in_pieces(cut: int) -> None:
    whole = request(None, REALTIME, "GET", **OFFER) + b"early"
    reader = RequestReader(Budget())
    reader.feed(whole[:cut])
    reader.feed(whole[cut:])
    assert reader.error is None
    (one,) = reader.ready
    assert one.upgrade
    assert not one.keep_alive
    assert b"early".endswith(reader.beyond)


def test_an_on_demand_model_is_woken_before_the_offer_is_taken() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(m=loaded(wait_timeout_s=60.0)))
            client = await world.client()
            client.send(request(None, REALTIME, "GET", **OFFER) + b"early")
            await world.until(lambda: world.waiting() == {"m": 1})
            world.pass_time(12.0)
            engine = await world.engine(echo)
            world.use(table(2, m=loaded(engine.replica())))
            assert (await client.head())[0] == 101
            assert await client.until(b"EARLY") == b"EARLY"
            await client.close()

    run(scenario())


def test_a_model_that_does_not_come_up_is_told_as_ever() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(m=loaded(wait_timeout_s=5.0)))
            client = await world.client()
            client.send(request(None, REALTIME, "GET", **OFFER))
            await world.until(world.waiting)
            world.pass_time(6.0)
            answer = await client.answer()
            assert answer.status == 503
            assert answer.error["code"] == "model_not_ready"
            assert await client.rest() == b""

    run(scenario())


def test_a_refused_offer_is_an_answer() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def refuses(talk: Talk) -> None:
                await talk.json({"error": "not here"}, "403 Forbidden")

            engine = await world.engine(refuses)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            client.send(request(None, REALTIME, "GET", **OFFER) + b"early")
            answer = await client.answer()
            assert answer.status == 403
            assert answer.json == {"error": "not here"}
            assert answer.headers["x-llmgw-replica"] == "e1"
            assert await client.rest() == b""
            (line,) = world.lines()
            assert (line["status"], line["end"]) == (403, "ok")

    run(scenario())


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: upgrade\r\nbad header\r\n\r\n",
    ],
)
def test_a_switch_that_is_none_is_refused(head: bytes) -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def wrong(talk: Talk) -> None:
                await talk.say(head)
                await talk.client_leaves()

            engine = await world.engine(wrong)
            world.use(table(m=loaded(engine.replica())))
            answer = await world.ask(None, REALTIME)
            assert answer.status == 405
            client = await world.client()
            client.send(request(None, REALTIME, "GET", **OFFER))
            answer = await client.answer()
            assert answer.status == 502
            assert answer.error["code"] == "engine_failed"

    run(scenario())


def test_a_switch_that_nobody_asked_for_is_refused() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await in_use(world)
            answer = await world.ask({"model": "m"})
            assert answer.status == 502
            assert "switched to another protocol" in answer.error["message"]
            assert len(engine.asked) == 1

    run(scenario())


def test_who_cannot_go_on_so_is_told() -> None:
    """RFC 9110 7.8: an offer where none is taken is no error; and 15.5.22."""

    async def scenario() -> None:
        async with rig() as world:
            await in_use(world)
            client = await world.client()
            plain = await client.get(REALTIME)
            assert plain.status == 426
            assert plain.headers["upgrade"] == "websocket"
            assert plain.error["code"] == "websocket_only"
            models = await client.get("/v1/models", **OFFER)
            assert models.status == 200
            for path, status in (
                ("/v1/realtime", 400),
                ("/v1/realtime?model=", 400),
                ("/v1/realtime?model=m&model=n", 400),
                ("/v1/realtime?model=nobody", 404),
            ):
                client = await world.client()
                assert (await client.get(path, **OFFER)).status == status, path
            # HTTP/1.0 has no upgrades, and a body would be the other protocol's.
            client = await world.client()
            client.send(request(None, REALTIME, "GET", "1.0", **OFFER))
            assert (await client.answer()).status == 426
            client = await world.client()
            client.send(request(b"{}", REALTIME, "GET", **OFFER))
            assert (await client.answer()).status == 426

    run(scenario())


def test_the_key_of_a_browser_stays_here() -> None:
    """A page can set no header: OpenAI's form of a key among the subprotocols counts, and no engine sees it."""
    key = RouteKey(id="k", sha256=hashlib.sha256(b"secret").hexdigest(), models=("m",))

    async def scenario() -> None:
        async with rig(open_without_keys=False) as world:
            engine = await world.engine(echo)
            world.use(table(keys=(key,), m=loaded(engine.replica())))
            client = await world.client()
            assert (await client.get(REALTIME, **OFFER)).status == 401
            protocols = "realtime, openai-insecure-api-key.secret, other"
            client = await opened(world, sec_websocket_protocol=protocols)
            await client.close()
            only = "openai-insecure-api-key.secret"
            client = await opened(world, sec_websocket_protocol=only)
            await client.close()
            client = await world.client()
            assert (
                await client.get(REALTIME, **OFFER, sec_websocket_protocol=f"{only}s")
            ).status == 401
            assert [a.headers.get("sec-websocket-protocol") for a in engine.asked] == [
                "realtime, other",
                None,
            ]
            assert all("secret" not in str(a) for a in engine.asked)

    run(scenario())


def test_an_engine_that_knows_the_model_by_another_name() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await in_use(world, upstream_model="org/M&M")
            client = await opened(world, "/v1/realtime?intent=a%20b&model=m")
            await client.close()
            assert engine.asked[0].path == "/v1/realtime?intent=a+b&model=org%2FM%26M"

    run(scenario())


def test_upstream_passes_an_engines_own_sockets() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await in_use(world)
            client = await opened(world, "/upstream/m/own/ws?x=1")
            client.send(b"hi")
            assert await client.until(b"HI") == b"HI"
            await client.close()
            assert engine.asked[0].path == "/own/ws?x=1"

    run(scenario())
