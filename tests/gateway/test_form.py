"""Multipart forms: the model is found where the engine finds it, or the form is refused (contract/http.md)."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.gateway import form
from llmgw.gateway.openai import ProblemError
from tests.gateway.peers import Answer, Talk
from tests.gateway.rig import Rig, loaded, rig, run, table
from tests.gateway.test_keys import key

TYPE = b"multipart/form-data; boundary=XyZ"
PATH = "/v1/audio/transcriptions"


def part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return b"--XyZ\r\n" + head.encode() + value + b"\r\n"


FILE = part(
    "file", b'RIFF\r\n--Xy\r\nname="model"\0\xff', '; filename="a.wav"\r\nContent-Type: audio/wav'
)
MODEL = part("model", b"whisper")
END = b"--XyZ--\r\n"


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        (MODEL + FILE + END, False),
        (FILE + MODEL + END, False),
        (b"a preamble\r\n" + FILE + MODEL + part("stream", b"true") + END, True),
        (part("stream", b"True") + MODEL + b"--XyZ--", True),
        (part("stream", b"false") + MODEL + END + b"an epilogue\r\n--XyZ\r\n", False),
        (MODEL.replace(b"--XyZ\r\n", b"--XyZ \t\r\n", 1) + END, False),
        (
            MODEL.replace(
                b"Content-Disposition: form-data; name", b"content-disposition:form-data;name"
            )
            + END,
            False,
        ),
        (MODEL.replace(b"Content-Dis", b"Content-Type: text/plain\r\nContent-Dis") + END, False),
        (part("file", b"") + MODEL + END, False),
    ],
)
def test_the_model_is_found_in_place(body: bytes, stream: bool) -> None:
    found = form.asked(body, TYPE)
    assert (found.model, found.stream) == ("whisper", stream)
    assert body[found.start : found.end] == b"whisper"


@pytest.mark.parametrize(
    ("body", "content_type", "why"),
    [
        (MODEL + END, b"application/json", "it is sent as application/json"),
        (MODEL + END, b"", "it is sent as nothing"),
        (MODEL + END, b"multipart/form-data", "it is sent as multipart"),
        (MODEL + END, b"multipart/form-data; boundary=", "it is sent as multipart"),
        (MODEL + END, b"multipart/form-data; boundary=Other", "does not begin with its boundary"),
        (b"", TYPE, "does not begin with its boundary"),
        (FILE + END, TYPE, "it has no field `model`"),
        (part("model", b"") + END, TYPE, "it has no field `model`"),
        (part("model", b"m" * 2000) + END, TYPE, "it has no field `model`"),
        (part("model", b"\xff") + END, TYPE, "its `model` is no text"),
        (MODEL + MODEL + END, TYPE, "it has two fields `model`"),
        (part("f", b"", '; filename="x; name=model"') + END, TYPE, "it has no field `model`"),
        (MODEL.replace(b'"model"', b'"model"; name="m"') + END, TYPE, "has 2 names"),
        (MODEL.replace(b'"model"', b'"mod\\"el"') + END, TYPE, "cannot be read"),
        (MODEL.replace(b'name="model"', b"name*=utf-8''model") + END, TYPE, "has 0 names"),
        (MODEL.replace(b"Content-Dis", b"X-Content-Dis") + END, TYPE, "0 content-disposition"),
        (
            MODEL.replace(b"Content-Dis", b"Content-Disposition: form-data; name=x\r\nContent-Dis")
            + END,
            TYPE,
            "2 content-disposition",
        ),
        (MODEL.replace(b"form-data", b"attachment") + END, TYPE, "no form-data"),
        (MODEL, TYPE, "no end"),
        (MODEL[:-2], TYPE, "no end"),
        (b"--XyZ\r\n" + END, TYPE, "no end"),
        (MODEL.replace(b"--XyZ", b"--XyZx") + END, TYPE, "no line end"),
        (MODEL.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 9000 + b"\r\n\r\n") + END, TYPE, "no end"),
        (part("a", b"") * 1001 + END, TYPE, "more than 1000 parts"),
    ],
)
def test_what_two_readers_could_read_differently_is_refused(
    body: bytes, content_type: bytes, why: str
) -> None:
    with pytest.raises(ProblemError, match="the form is refused") as e:
        form.asked(body, content_type)
    assert why in e.value.message
    assert e.value.status == 400


@given(st.binary(max_size=300), st.sampled_from([b"", b"--XyZ", MODEL, FILE]))
def test_whatever_is_sent_it_is_read_or_refused(body: bytes, front: bytes) -> None:
    try:
        found = form.asked(front + body, TYPE)
    except ProblemError:
        return
    assert (front + body)[found.start : found.end].decode() == found.model


def test_a_large_file_goes_through_as_it_came_and_is_not_copied_for_a_name() -> None:
    big = part("file", b"\x00\x01\r\n" * (2 << 20), '; filename="a.wav"')
    sent = big + part("model", b"whisper-1") + END
    kind = {"content_type": TYPE.decode()}

    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(served)
            replica = engine.replica(upstream_model="large-v3")
            world.use(table(m=loaded(replica, aliases=("whisper-1",))))
            answer = await world.ask(sent, PATH, **kind)
            assert answer.status == 200
            asked = engine.asked[-1]
            assert asked.path == PATH
            assert asked.headers["content-type"] == TYPE.decode()
            assert asked.body == big + part("model", b"large-v3") + END
            tracemalloc.start()
            form.asked(sent, TYPE)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 100_000, "of 8 MiB"
            refused = await world.ask(b"{}", PATH, content_type="application/json")
            assert (refused.status, refused.error["code"]) == (400, "invalid_body")
            other = await world.ask(part("model", b"nobody") + END, PATH, **kind)
            assert (other.status, other.error["code"]) == (404, "model_not_found")

    run(scenario())


async def served(talk: Talk) -> None:
    await talk.json({"from": talk.engine.name})


UPSTREAM = [
    ("/upstream/m/slots?x=%2F..", "/slots?x=%2F.."),
    ("/upstream/m", "/"),
    ("/upstream/m/", "/"),
    ("/upstream/m//a///b/./c/", "/a/b/c/"),
    ("/upstream/team%2Fm/v1/x", "/v1/x"),
    ("/upstream/m/a%20b", "/a%20b"),
]
CLIMBS = ["..", "a/../b", "%2e%2e/x", ".%2E", "a%2fb", "a%5c..", "a%00b", "..%2f"]


def test_upstream_passes_an_engines_own_api() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(served)
            world.use(table(m=loaded(engine.replica(upstream_model="inside"), aliases=("team/m",))))
            client = await world.client()
            for path, seen in UPSTREAM:
                assert (await client.get(path)).status == 200
                assert engine.asked[-1].path == seen
                assert "content-length" not in engine.asked[-1].headers
            body = b'{"model": "mine", "filename": "x"}'
            assert (await client.ask(body, "/upstream/m/slots/0?action=save")).status == 200
            assert engine.asked[-1].body == body, "as it came: what it means only the engine knows"
            for path in CLIMBS:
                answer = await client.get(f"/upstream/m/{path}")
                assert (answer.status, answer.error["code"]) == (400, "bad_path")
            assert (await client.get("/upstream/nobody/x")).status == 404

    run(scenario())


async def afar(world: Rig, path: str, **headers: str) -> Answer:
    """As from another box."""
    client = await world.client()
    await world.until(lambda: world.gateway.connections)
    for connection in world.gateway.connections:
        connection.loopback = False
    answer = await client.get(path, **headers)
    await client.close()
    await world.until(lambda: not world.gateway.connections)
    return answer


def test_upstream_from_another_box_needs_the_right() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(served)
            keys = (key("ann"), key("ops", rights=("upstream",), models=("m",)))
            world.use(table(keys=keys, m=loaded(engine.replica()), n=loaded(engine.replica())))
            for who, model, status in (
                ("ann", "m", 403),
                ("ops", "m", 200),
                ("ops", "n", 403),
                ("eve", "m", 401),
            ):
                path = f"/upstream/{model}/x"
                answer = await afar(world, path, authorization=f"Bearer {who}")
                assert answer.status == status, (who, model)
            world.use(table(2, m=loaded(engine.replica())))
            answer = await afar(world, "/upstream/m/x")
            assert (answer.status, answer.error["code"]) == (403, "upstream_not_allowed")

    run(scenario())


def test_a_call_that_nobody_knows_is_not_made_twice() -> None:
    """An engine that dies of it may have done it: reading is repeated, writing is not."""

    async def scenario() -> None:
        async with rig() as world:
            for method, status in (("GET", 200), ("POST", 502)):
                dying, well = (
                    await world.engine(Talk.die, "dying"),
                    await world.engine(served, "well"),
                )
                # The weight makes it the first to be asked.
                replicas = (dying.replica(weight=100, profile="q"), well.replica())
                world.use(table(m=loaded(*replicas)))
                client = await world.client()
                answer = await client.get("/upstream/m/x", method)
                assert (answer.status, len(dying.asked)) == (status, 1), method

    run(scenario())


def test_the_name_of_a_file_is_no_field() -> None:
    """Two readers of `filename="a; name=zzz"` would name two models."""
    sent = part("model", b"big", '; filename="a; name=zzz"') + part("zzz", b"small") + END
    assert form.asked(sent, TYPE).model == "big"
