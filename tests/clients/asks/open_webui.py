"""What Open WebUI sends and how it takes the answers, done to a gateway: `open_webui.py BASE_URL KEY`.

Read from Open WebUI 0.12.4: routers/openai.py, routers/audio, retrieval/utils.py, utils/headers.py and
utils/session_pool.py. It is no part of the tests itself (over a gigabyte); its HTTP client, aiohttp, is. One session
for all chats and one for each list of models; no time limit but 10 s for a list; the user is in headers.
Run by build/clients' Python (make test-clients).
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
from said import ASK, TOOL, WEATHER, check, main

URL, KEY = sys.argv[1:3]
USER = {
    "X-OpenWebUI-Auth-Type": "jwt",
    "X-OpenWebUI-User-Name": "Ann%20B",
    "X-OpenWebUI-User-Id": "1",
    "X-OpenWebUI-User-Email": "ann@example.org",
    "X-OpenWebUI-User-Role": "admin",
}
BEARER = {"Authorization": f"Bearer {KEY}"}
CHAT = {"Content-Type": "application/json", **USER, "X-OpenWebUI-Chat-Id": "2", **BEARER}
PIECE = 16 << 10


def talk(said: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def over() -> None:
        connector = aiohttp.TCPConnector(ttl_dns_cache=300, enable_cleanup_closed=True)
        async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:
            await said(session)

    asyncio.run(over())


async def posted(
    session: aiohttp.ClientSession, path: str, body: dict[str, Any]
) -> aiohttp.ClientResponse:
    data = json.dumps(body).encode()
    limit = aiohttp.ClientTimeout(total=None, sock_read=None)
    return await session.request(
        method="POST", url=URL + path, data=data, headers=CHAT, cookies={}, timeout=limit
    )


async def events(answer: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    """It takes an answer for a stream by its content type, and reads it line by line."""
    assert answer.status == 200
    assert "text/event-stream" in answer.headers["Content-Type"]
    lines = [line.strip() async for line in answer.content]
    said = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    assert said.pop() == b"[DONE]"
    return [json.loads(text) for text in said]


@check
def the_list_of_models() -> None:
    async def said() -> None:
        limit = aiohttp.ClientTimeout(total=10)
        for headers in (BEARER, {"Content-Type": "application/json", **USER, **BEARER}):
            async with (
                aiohttp.ClientSession(timeout=limit, trust_env=True) as session,
                session.get(f"{URL}/models", headers=headers) as answer,
            ):
                found = await answer.json()
            assert [m["id"] for m in found["data"]] == ["chat", "embed", "voice"]
            assert all(m["object"] == "model" for m in found["data"])
            # Connected as `llama.cpp` it tells by this whether one is loaded.
            assert found["data"][0]["status"]["value"] == "loaded"

    asyncio.run(said())


@check
def a_chat_with_usage_and_one_connection_for_many() -> None:
    async def said(session: aiohttp.ClientSession) -> None:
        ask = {"model": "chat", "messages": ASK, "stream": True, "max_tokens": 12}
        for _ in range(3):
            answer = await posted(
                session, "/chat/completions", ask | {"stream_options": {"include_usage": True}}
            )
            assert any(e.get("usage") for e in await events(answer))
        assert session.connector is not None
        assert sum(map(len, session.connector._conns.values())) == 1

    talk(said)


@check
def a_tool_call() -> None:
    async def said(session: aiohttp.ClientSession) -> None:
        ask = {"model": "chat", "messages": WEATHER, "stream": True, "max_tokens": 200}
        more = {"tools": [TOOL], "tool_choice": "required", "temperature": 0}
        answer = await posted(session, "/chat/completions", ask | more)
        deltas = [c["delta"] for e in await events(answer) for c in e["choices"]]
        assert any(d.get("tool_calls") for d in deltas)

    talk(said)


@check
def a_title_is_asked_for_whole() -> None:
    async def said(session: aiohttp.ClientSession) -> None:
        ask = {"model": "chat", "messages": ASK, "stream": False, "max_tokens": 8}
        answer = await posted(session, "/chat/completions", ask)
        assert "text/event-stream" not in answer.headers["Content-Type"]
        assert (await answer.json())["choices"][0]["message"]["content"]

    talk(said)


@check
def a_chat_that_is_stopped() -> None:
    async def said(session: aiohttp.ClientSession) -> None:
        ask = {"model": "chat", "messages": ASK, "stream": True, "max_tokens": 2000}
        answer = await posted(session, "/chat/completions", ask | {"ignore_eos": True})
        await answer.content.readline()
        answer.close()

    talk(said)


@check
def embeddings_of_chats_and_of_documents() -> None:
    async def said(session: aiohttp.ClientSession) -> None:
        answer = await posted(session, "/embeddings", {"model": "embed", "input": "one"})
        assert len((await answer.json())["data"]) == 1
        async with session.post(
            f"{URL}/embeddings",
            headers={"Content-Type": "application/json", **BEARER, **USER},
            json={"input": ["one", "two"], "model": "embed"},
        ) as answer:
            answer.raise_for_status()
            found = [item["embedding"] for item in (await answer.json())["data"]]
        assert [len(e) > 100 for e in found] == [True, True]

    talk(said)


@check
def speech_to_text_is_uploaded_in_chunks() -> None:
    """Its length is not known before: the form is read from the file as it goes."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"\xff" * PIECE

    async def said(session: aiohttp.ClientSession) -> None:
        form = aiohttp.FormData()
        form.add_field("model", "voice")
        form.add_field("language", "en")
        form.add_field("file", pieces(), filename="a.wav")
        answer = await session.post(f"{URL}/audio/transcriptions", headers=BEARER | USER, data=form)
        assert answer.request_info.headers.get("Transfer-Encoding") == "chunked"
        answer.raise_for_status()
        assert await answer.json() == {"text": f"{20 * PIECE} bytes"}

    talk(said)


@check
def text_to_speech_is_the_engines_own_answer() -> None:
    async def said(session: aiohttp.ClientSession) -> None:
        ask = {"model": "voice", "input": "hello", "voice": "alloy"}
        headers = {"Content-Type": "application/json", **BEARER, **USER}
        answer = await session.post(f"{URL}/audio/speech", json=ask, headers=headers)
        assert answer.status == 404, "this one has none"
        assert (await answer.json())["error"]["message"] == "no POST /v1/audio/speech here"

    talk(said)


@check
def an_error_is_shown_as_it_is() -> None:
    """`error` of the body, with `Retry-After` where there is one; a stream is refused before it begins."""

    async def said(session: aiohttp.ClientSession) -> None:
        for stream in (False, True):
            ask = {"model": "x", "messages": ASK, "stream": stream}
            answer = await posted(session, "/chat/completions", ask)
            assert answer.status == 404
            assert "text/event-stream" not in answer.headers["Content-Type"]
            assert (await answer.json())["error"]["message"] == "model 'x' does not exist"

    talk(said)


if __name__ == "__main__":
    sys.exit(main())
