"""What people do with Anthropic's SDK, done to a gateway: `anthropic_sdk.py URL KEY`.

Run by build/clients' Python (make test-clients). The base URL is without /v1, and the key goes as `x-api-key`.
"""

import sys

import anthropic
from said import check, main

URL, KEY = sys.argv[1:3]
CHAT = "chat"
client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=60)
ASK = [{"role": "user", "content": "Say hello."}]
WEATHER = [{"role": "user", "content": "What is the weather in Rome?"}]
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
        "required": ["city"],
    },
}


@check
def a_message() -> None:
    answer = client.messages.create(model=CHAT, messages=ASK, max_tokens=12)
    assert answer.content[0].text
    assert answer.usage.output_tokens > 0


@check
def a_stream() -> None:
    with client.messages.stream(model=CHAT, messages=ASK, max_tokens=16) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text
    assert final.usage.output_tokens > 0


@check
def a_tool_call() -> None:
    answer = client.messages.create(
        model=CHAT,
        messages=WEATHER,
        tools=[TOOL],
        tool_choice={"type": "any"},
        max_tokens=200,
        extra_body={"temperature": 0},
    )
    (call,) = [c for c in answer.content if c.type == "tool_use"]
    assert call.name == "get_weather"
    assert call.input["city"] in ("Rome", "Oslo")


@check
def tokens_are_counted() -> None:
    assert client.messages.count_tokens(model=CHAT, messages=ASK).input_tokens > 3


def raised(
    kind: type[Exception], client: anthropic.Anthropic, **changes: object
) -> anthropic.APIStatusError:
    try:
        client.messages.create(**({"model": CHAT, "messages": ASK, "max_tokens": 5} | changes))
    except kind as e:
        return e  # type: ignore[return-value]
    msg = f"no {kind.__name__}"
    raise AssertionError(msg)


@check
def an_unknown_model() -> None:
    e = raised(anthropic.NotFoundError, client, model="chta")
    assert e.body["error"]["type"] == "not_found_error"
    assert e.body["error"]["hint"] == "did you mean chat?"


@check
def a_wrong_key() -> None:
    e = raised(anthropic.AuthenticationError, client.with_options(api_key="wrong"))
    assert e.body["error"]["type"] == "authentication_error"


@check
def a_time_out() -> None:
    raised(anthropic.APITimeoutError, client.with_options(timeout=0.05), max_tokens=1500)


if __name__ == "__main__":
    sys.exit(main())
