"""Contract http.md "Gateway", sentence by sentence, where no other test holds it: what any client may count on."""

import json

import pytest

from llmgw.core.types.routes import RouteKey, RouteModel
from llmgw.gateway import openai
from tests.gateway.peers import Talk, request
from tests.gateway.rig import loaded, rig, run, table
from tests.gateway.test_keys import key

JSON_CALLS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/rerank",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/audio/speech",
    "/v1/images/generations",
]
FORMS = ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"]
TYPE = "multipart/form-data; boundary=b"


def form(model: str) -> bytes:
    parts = [
        f'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n{model}\r\n',
        '--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n\0\xff\r\n--b--\r\n',
    ]
    return "".join(parts).encode("latin-1")


async def echo(talk: Talk) -> None:
    """The body that the engine got, as its answer."""
    body = talk.asked.body
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/x\r\ncontent-length: {len(body)}\r\n\r\n"
    await talk.say(head.encode() + body)


def test_the_list_is_that_of_the_contract() -> None:
    assert {p.decode() for p in openai.APIS} == {*JSON_CALLS, *FORMS}


def test_every_call_passes_as_bytes_with_the_engines_own_name_of_the_model() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(echo)
            for version, own in enumerate(("", "org/own-name"), 1):
                world.use(table(version, m=loaded(engine.replica(upstream_model=own))))
                for path in JSON_CALLS:
                    body = b'{"x":  1.0,"model":"m","y":[1,  2]}'
                    client = await world.client()
                    client.send(request(body, f"{path}?a=b"))
                    answer = await client.answer()
                    assert answer.status == 200, path
                    assert answer.headers["content-type"] == "application/x"
                    wanted = {"x": 1.0, "model": own or "m", "y": [1, 2]}
                    assert json.loads(answer.body) == wanted
                    assert own or answer.body == body
                    assert b"[1,  2]" in answer.body, "values go on as they were sent"
                    assert engine.asked[-1].path == f"{path}?a=b"
                    await client.close()
                for path in FORMS:
                    client = await world.client()
                    client.send(request(form("m"), path, content_type=TYPE))
                    answer = await client.answer()
                    assert answer.body == form(own or "m"), path
                    assert engine.asked[-1].headers["content-type"] == TYPE
                    await client.close()

    run(scenario())


@pytest.mark.parametrize("path", [*JSON_CALLS, *FORMS])
def test_errors_have_the_shape_of_their_api(path: str) -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(m=loaded()))
            client = await world.client()
            body = form("nobody") if path in FORMS else b'{"model":"nobody"}'
            headers = {"content_type": TYPE} if path in FORMS else {}
            client.send(request(body, path, **headers))
            answer = await client.answer()
            assert answer.status == 404
            assert answer.error["hint"]
            anthropic = path.startswith("/v1/messages")
            assert answer.json.get("type") == ("error" if anthropic else None)
            kind = "not_found_error" if anthropic else "invalid_request_error"
            assert answer.error["type"] == kind
            assert answer.error["code"] == "model_not_found"
            for name in ("x-llmgw-replica", "x-accel-buffering", "x-request-id"):
                assert name in answer.headers

    run(scenario())


def test_head_of_an_engines_own_api() -> None:
    """The length is that of the body which is not sent; the connection is used again, both before and behind."""

    async def scenario() -> None:
        async with rig() as world:

            async def answers(talk: Talk) -> None:
                framing = (
                    "transfer-encoding: chunked"
                    if "chunked" in talk.asked.path
                    else "content-length: 5"
                )
                head = f"HTTP/1.1 200 OK\r\nx-own: 1\r\n{framing}\r\n\r\n"
                body = b"" if talk.asked.method == "HEAD" else b"hello"
                await talk.say(head.encode() + body)

            engine = await world.engine(answers)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            for _ in range(2):
                assert (await client.get("/upstream/m/file")).body == b"hello"
                head = await client.get("/upstream/m/file", "HEAD")
                assert (head.status, head.body) == (200, b"")
                assert (head.headers["content-length"], head.headers["x-own"]) == ("5", "1")
                chunked = await client.get("/upstream/m/chunked", "HEAD")
                assert chunked.headers["transfer-encoding"] == "chunked"
            assert (await client.get("/upstream/m/file")).body == b"hello"
            assert engine.connections == 1
            assert "content-length" not in engine.asked[1].headers
            assert (await client.get("/v1/models")).status == 200

    run(scenario())


def test_a_body_where_head_has_none_ends_the_connection() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def wrong(talk: Talk) -> None:
                await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
                await talk.client_leaves()

            engine = await world.engine(wrong)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            head = await client.get("/upstream/m/file", "HEAD")
            assert head.status == 502
            (line,) = world.lines()
            assert "sent more than its answer" in line["why"]

    run(scenario())


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_an_answer_that_has_no_body_has_no_length(status: str) -> None:
    """RFC 9110 8.6: that of a 304 would be another one's."""

    async def scenario() -> None:
        async with rig() as world:

            async def answers(talk: Talk) -> None:
                length = "content-length: 55\r\n" if status.startswith("304") else ""
                await talk.say(f'HTTP/1.1 {status}\r\netag: "x"\r\n{length}\r\n'.encode())

            engine = await world.engine(answers)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            for _ in range(2):
                answer = await client.get("/upstream/m/file")
                assert (str(answer.status), answer.headers["etag"]) == (status[:3], '"x"')
                assert "content-length" not in answer.headers
            assert engine.connections == 1

    run(scenario())


def test_a_chunked_answer_to_an_http_1_0_client_ends_with_its_connection() -> None:
    async def scenario() -> None:
        async with rig() as world:

            async def chunks(talk: Talk) -> None:
                await talk.open_stream()
                await talk.event("one")
                await talk.event("two")
                await talk.end_stream()

            engine = await world.engine(chunks)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            ask = {"model": "m", "stream": True}
            client.send(request(ask, version="1.0", connection="keep-alive"))
            status, headers = await client.head()
            assert status == 200
            assert "transfer-encoding" not in headers
            assert headers["connection"] == "close"
            assert await client.rest() == b"data: one\n\ndata: two\n\n"

    run(scenario())


def test_pipelined_calls_of_all_kinds_are_answered_in_their_order() -> None:
    async def scenario() -> None:
        async with rig() as world:
            engine = await world.engine(echo)
            world.use(table(m=loaded(engine.replica())))
            client = await world.client()
            one, two = b'{"model":"m","n":1}', b'{"model":"m","n":2}'
            client.send(
                request(one)
                + request(None, "/v1/models", "HEAD")
                + request(two, expect="100-continue")
                + request(None, "/healthz", "GET")
                + request(b"{}")
                + request(None, "/nothing", "GET")
                + request(one, version="1.0")
                + request(two)
            )
            assert (await client.answer()).body == one
            assert (await client.answer(head_only=True)).status == 200
            assert (await client.answer()).body == two
            assert (await client.answer()).json["status"] == "ok"
            assert (await client.answer()).status == 400
            assert (await client.answer()).status == 404
            assert (await client.answer()).body == one
            assert await client.rest() == b"", "HTTP/1.0 was the last"

    run(scenario())


def test_who_may_not_use_upstream_may_not_by_a_websocket_either() -> None:
    async def scenario() -> None:
        async with rig() as world:
            plain: RouteKey = key("plain")
            engine = await world.engine(echo)
            world.use(table(keys=(plain,), m=loaded(engine.replica())))
            client = await world.client()
            offer = {
                "connection": "Upgrade",
                "upgrade": "websocket",
                "authorization": "Bearer plain",
            }
            # This box may; from another one a right is needed, whatever the form of the call.
            await world.until(lambda: world.gateway.connections)
            (connection,) = world.gateway.connections
            connection.loopback = False
            answer = await client.get("/upstream/m/ws", **offer)
            assert answer.status == 403
            assert answer.error["code"] == "upstream_not_allowed"
            assert not engine.asked

    run(scenario())


def test_a_page_may_make_every_call_that_there_is() -> None:
    async def scenario() -> None:
        async with rig() as world:
            client = await world.client()
            for path in ("/upstream/m/x", "/v1/chat/completions", "/v1/models"):
                client.send(request(None, path, "OPTIONS", origin="http://page"))
                allowed = (await client.answer()).headers["access-control-allow-methods"]
                methods = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
                assert set(allowed.split(", ")) == methods

    run(scenario())


def test_listing_by_head_and_preflight_wakes_nothing() -> None:
    async def scenario() -> None:
        async with rig() as world:
            world.use(table(m=loaded()))
            client = await world.client()
            for method in ("GET", "HEAD", "OPTIONS"):
                for path in ("/v1/models", "/v1/models/m", "/healthz", "/metrics"):
                    assert (await client.get(path, method)).status in (200, 204)
            demand = world.gateway.demand()
            assert demand.waiting == demand.in_flight == demand.last_byte == {}

    run(scenario())


OFFER = {"connection": "Upgrade", "upgrade": "websocket"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("PUT", "/v1/models", {}, 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", {}, 405, "method_not_allowed"),
        ("TRACE", "/upstream/m/x", {}, 405, "method_not_allowed"),
        ("GET", "/v1/nothing", {}, 404, "not_found"),
        ("GET", "/v1/models/nobody", {}, 404, "model_not_found"),
        ("GET", "/upstream/m/%2e%2e/x", {}, 400, "bad_path"),
        ("GET", "/v1/realtime", OFFER, 400, "invalid_query"),
        ("GET", "/v1/realtime?model=m", {}, 426, "websocket_only"),
        ("POST", "/v1/chat/completions", {}, 400, "invalid_body"),
    ],
)
def test_each_refusal_has_its_own_code(
    method: str, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    """Programs go by the code: it says more than a status, and is in no sentence that may change."""

    async def scenario() -> None:
        async with rig() as world:
            world.use(table(m=loaded()))
            client = await world.client()
            answer = await client.get(path, method, **headers)
            assert (answer.status, answer.error["code"]) == (status, code)
            assert answer.error["message"]
            assert answer.error["hint"]
            assert ("allow" in answer.headers) == (status == 405)

    run(scenario())


def test_a_model_says_the_same_of_itself_each_time() -> None:
    """`created` is what clients cache by: no table and no other gateway gives another one."""

    async def scenario() -> None:
        seen = []
        for version, status in enumerate(("loaded", "loading", "unloaded", "failed"), 1):
            async with rig() as world:
                world.use(table(version, m=RouteModel(status=status)))
                client = await world.client()
                document = (await client.get("/v1/models/m")).json
                assert document.pop("status")["value"] == status
                seen.append(document)
        assert all(document == seen[0] for document in seen)
        wanted = {"id", "object", "created", "owned_by", "context_length", "max_model_len"}
        assert set(seen[0]) == wanted | {"meta", "aliases"}

    run(scenario())
