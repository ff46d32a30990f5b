"""What people do with OpenAI's SDK, done to a gateway: `openai_sdk.py BASE_URL KEY LIMITED_KEY`.

Run by build/clients' Python (make test-clients); it knows nothing of llmgw but its address.
"""

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import openai
from said import ASK, TOOL, WEATHER, check, main, raised

URL, KEY, LIMITED = sys.argv[1:4]
CHAT, COLD = "chat", "embed"
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=60)


@check
def the_list_of_models() -> None:
    models = {m.id: m for m in client.models.list()}
    assert set(models) == {CHAT, COLD, "voice"}, models
    assert client.models.retrieve(CHAT).id == CHAT
    assert models[CHAT].owned_by == "llmgw"


@check
def a_chat() -> None:
    answer = client.chat.completions.create(
        model=CHAT, messages=ASK, max_tokens=12, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 12, answer.usage


@check
def a_chat_by_an_alias_with_its_headers() -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="default", messages=ASK, max_tokens=4, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-llmgw-replica"].startswith("chat-")
    assert raw.parse().choices[0].message.content


@check
def a_stream_with_usage() -> None:
    stream = client.chat.completions.create(
        model=CHAT,
        messages=ASK,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    pieces, usage = [], None
    for chunk in stream:
        usage = chunk.usage or usage
        pieces += [c.delta.content for c in chunk.choices if c.delta.content]
    assert len(pieces) > 3, pieces
    assert usage.completion_tokens == 20, usage


@check
def a_stream_that_is_left() -> None:
    with client.chat.completions.create(
        model=CHAT, messages=ASK, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        for n, _ in enumerate(stream):
            if n == 3:
                break


@check
def a_tool_call() -> None:
    answer = client.chat.completions.create(
        model=CHAT,
        messages=WEATHER,
        tools=[TOOL],
        tool_choice="required",
        temperature=0,
        max_tokens=200,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


@check
def a_tool_call_in_a_stream() -> None:
    name = arguments = ""
    for chunk in client.chat.completions.create(
        model=CHAT, messages=WEATHER, tools=[TOOL], tool_choice="required", temperature=0,
        max_tokens=200, stream=True,
    ):  # fmt: skip
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert name == "get_weather"
    assert json.loads(arguments)["city"] in ("Rome", "Oslo")


@check
def a_plain_completion() -> None:
    answer = client.completions.create(model=CHAT, prompt="One, two,", max_tokens=5)
    assert answer.choices[0].text


@check
def a_response_and_its_stream() -> None:
    answer = client.responses.create(model=CHAT, input="Say hello.", max_output_tokens=8)
    assert answer.output_text
    kinds = [
        event.type
        for event in client.responses.create(
            model=CHAT, input="Say hello.", max_output_tokens=8, stream=True
        )
    ]
    assert kinds[-1] == "response.completed", kinds


@check
def embeddings_of_a_model_that_is_asleep() -> None:
    found = client.embeddings.create(model=COLD, input=["one", "two"])
    assert len(found.data) == 2
    assert len(found.data[0].embedding) > 100


@check
def an_unknown_model() -> None:
    e = raised(
        openai.NotFoundError,
        lambda: client.chat.completions.create(model="chta", messages=ASK),
    )
    assert e.code == "model_not_found"
    assert e.body["hint"] == "did you mean chat?", e.body
    assert e.request_id


@check
def a_wrong_key_and_none() -> None:
    for other in (
        client.with_options(api_key="wrong"),
        client.with_options(default_headers={"Authorization": ""}),
    ):
        e = raised(
            openai.AuthenticationError,
            lambda other=other: other.chat.completions.create(model=CHAT, messages=ASK),
        )
        assert e.code == "invalid_api_key"


@check
def a_body_that_an_engine_refuses() -> None:
    e = raised(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=CHAT, messages=[{"role": "user"}]),
    )
    assert e.status_code == 400


@check
def a_time_out_and_the_engine_is_free_again() -> None:
    def slow() -> object:
        return client.with_options(timeout=0.3).chat.completions.create(
            model=CHAT, messages=ASK, max_tokens=1500, extra_body={"ignore_eos": True}
        )

    for _ in range(3):
        raised(openai.APITimeoutError, slow)
    began = time.monotonic()
    a_chat()
    assert time.monotonic() - began < 30


@check
def a_limit_is_a_rate_limit_and_retries_get_through() -> None:
    one = client.with_options(api_key=LIMITED)

    def ask(c: openai.OpenAI) -> str:
        answer = c.chat.completions.create(
            model=CHAT, messages=ASK, max_tokens=60, extra_body={"ignore_eos": True}
        )
        return str(answer.choices[0].message.content)

    with one.chat.completions.create(
        model=CHAT, messages=ASK, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
        e = raised(openai.RateLimitError, lambda: ask(one))
        assert e.code == "rate_limit_exceeded"
        assert e.response.headers["retry-after"] == "1"
    patient = one.with_options(max_retries=20)
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(ask, [patient] * 3))


@check
def many_at_once_asynchronously() -> None:
    async def ask(c: openai.AsyncOpenAI, n: int) -> int:
        answer = await c.chat.completions.create(model=CHAT, messages=ASK, max_tokens=2 + n)
        return answer.usage.completion_tokens

    async def all_of_them() -> list[int]:
        async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, timeout=60) as c:
            return await asyncio.gather(*(ask(c, n) for n in range(8)))

    found = asyncio.run(all_of_them())
    assert all(0 < t <= 2 + n for n, t in enumerate(found)), found


if __name__ == "__main__":
    sys.exit(main())
