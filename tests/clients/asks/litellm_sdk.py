"""What people do with LiteLLM's SDK, done to a gateway: `litellm_sdk.py BASE_URL KEY LIMITED_KEY`.

Run by build/clients' Python (make test-clients). It asks nobody but the gateway: its own tables come with it.
"""

import asyncio
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOCAL_BLOG_POSTS": "True"}
import litellm
from said import ASK, TOOL, WEATHER, check, main, raised

URL, KEY, LIMITED = sys.argv[1:4]
CHAT, COLD = "openai/chat", "openai/embed"
litellm.suppress_debug_info = True
HERE = {"api_base": URL, "api_key": KEY, "timeout": 60, "max_retries": 0}
ask = partial(litellm.completion, model=CHAT, messages=ASK, **HERE)


@check
def a_chat() -> None:
    answer = ask(max_tokens=12, extra_body={"ignore_eos": True})
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 12, answer.usage


@check
def a_chat_by_its_other_ways_to_such_servers() -> None:
    for way in ("hosted_vllm/chat", "litellm_proxy/chat", "openai/default", "custom_openai/chat"):
        assert ask(model=way, max_tokens=4).choices[0].message.content, way


@check
def headers_and_where_it_was_answered() -> None:
    answer = ask(max_tokens=4, extra_headers={"X-Request-Id": "mine-2"})
    headers = answer._response_headers
    assert headers["x-request-id"] == "mine-2", headers
    assert headers["x-llmgw-replica"].startswith("chat-")


@check
def a_stream_with_usage() -> None:
    chunks = list(ask(
        max_tokens=20, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
    ))  # fmt: skip
    pieces = [c.delta.content for chunk in chunks for c in chunk.choices if c.delta.content]
    assert len(pieces) > 3, pieces
    whole = litellm.stream_chunk_builder(chunks, messages=ASK)
    assert whole.usage.completion_tokens == 20, whole.usage
    assert whole.choices[0].message.content == "".join(pieces)


@check
def a_stream_that_is_left() -> None:
    stream = ask(max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    for _ in range(3):
        next(stream)
    stream.close() if hasattr(stream, "close") else None
    del stream


@check
def a_tool_call() -> None:
    answer = ask(
        messages=WEATHER, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=200
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


@check
def a_tool_call_in_a_stream() -> None:
    chunks = list(ask(
        messages=WEATHER, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=200, stream=True,
    ))  # fmt: skip
    whole = litellm.stream_chunk_builder(chunks, messages=WEATHER)
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


@check
def a_plain_completion() -> None:
    answer = litellm.text_completion(
        model="text-completion-openai/chat", prompt="One, two,", max_tokens=5, **HERE
    )
    assert answer.choices[0].text


@check
def a_response() -> None:
    answer = litellm.responses(model=CHAT, input="Say hello.", max_output_tokens=8, **HERE)
    assert answer.output


@check
def a_message_as_anthropic_has_it() -> None:
    root = URL.removesuffix("/v1")
    answer = litellm.completion(
        model="anthropic/chat", messages=ASK, max_tokens=8, **HERE | {"api_base": root}
    )
    assert answer.choices[0].message.content


@check
def embeddings_of_a_model_that_is_asleep() -> None:
    for kind in ("float", "base64"):
        found = litellm.embedding(model=COLD, input=["one", "two"], encoding_format=kind, **HERE)
        assert len(found.data) == 2, kind
        assert len(found.data[0]["embedding"]) > 100


@check
def an_unknown_model() -> None:
    e = raised(litellm.NotFoundError, lambda: ask(model="openai/chta"))
    assert "model 'chta' does not exist" in str(e)


@check
def a_wrong_key() -> None:
    raised(litellm.AuthenticationError, lambda: ask(api_key="wrong"))


@check
def a_body_that_an_engine_refuses() -> None:
    e = raised(litellm.BadRequestError, lambda: ask(messages=[{"role": "user"}]))
    assert e.status_code == 400


@check
def a_time_out_and_the_engine_is_free_again() -> None:
    for _ in range(3):
        raised(
            litellm.Timeout,
            lambda: ask(timeout=0.3, max_tokens=1500, extra_body={"ignore_eos": True}),
        )
    began = time.monotonic()
    a_chat()
    assert time.monotonic() - began < 30


@check
def a_limit_is_a_rate_limit_and_retries_get_through() -> None:
    one = partial(ask, api_key=LIMITED, max_tokens=60, extra_body={"ignore_eos": True})
    stream = one(max_tokens=400, stream=True)
    next(stream)
    e = raised(litellm.RateLimitError, one)
    assert e.status_code == 429
    assert e.response.headers["retry-after"] == "1"
    for _ in stream:
        pass
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(one, max_retries=20) for _ in range(3)]
    assert all(w.result().choices[0].message.content for w in waiting)


@check
def a_router_falls_back_and_goes_on() -> None:
    def deployment(name: str, model: str) -> dict[str, object]:
        return {"model_name": name, "litellm_params": {"model": model, **HERE}}

    router = litellm.Router(
        model_list=[deployment("broken", "openai/nobody"), deployment("good", CHAT)],
        fallbacks=[{"broken": ["good"]}],
        num_retries=1,
    )
    answer = router.completion(model="broken", messages=ASK, max_tokens=4)
    assert answer.choices[0].message.content


@check
def many_at_once_asynchronously() -> None:
    async def one(n: int) -> int:
        stream = await litellm.acompletion(
            model=CHAT, messages=ASK, max_tokens=2 + n, stream=True, **HERE
        )
        return len([chunk async for chunk in stream])

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(one(n) for n in range(8)))

    assert all(asyncio.run(all_of_them()))


if __name__ == "__main__":
    sys.exit(main())
