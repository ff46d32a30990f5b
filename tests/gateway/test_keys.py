"""Who may ask, and for which model."""

import hashlib

import pytest

from llmgw.core.types.routes import RouteKey
from llmgw.gateway.keys import Keys, allowed
from llmgw.gateway.openai import ProblemError


def key(value: str, **more: object) -> RouteKey:
    return RouteKey(id=value, sha256=hashlib.sha256(value.encode()).hexdigest(), **more)  # type: ignore[arg-type]


KEYS = Keys((key("alice"), key("bob", models=("small", "qwen*"))), open_without=True)


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer alice"},
        {b"authorization": b"bearer  alice "},
        {b"x-api-key": b"alice"},
        {b"api-key": b"alice"},
        {b"authorization": b"Basic eHg=", b"x-api-key": b"alice"},
    ],
)
def test_a_known_key(headers: dict[bytes, bytes]) -> None:
    found = KEYS.check(headers)
    assert found is not None
    assert found.id == "alice"


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "no API key was sent"),
        ({b"authorization": b"Bearer "}, "no API key was sent"),
        ({b"authorization": b"Bearer mallory"}, "not known here"),
        ({b"authorization": b"alice"}, "no API key was sent"),
    ],
)
def test_no_key_or_a_wrong_one(headers: dict[bytes, bytes], why: str) -> None:
    with pytest.raises(ProblemError, match=why) as e:
        KEYS.check(headers)
    assert (e.value.status, e.value.code) == (401, "invalid_api_key")
    assert "mallory" not in e.value.message


def test_without_keys_loopback_is_open_and_more_is_not() -> None:
    assert Keys((), open_without=True).open
    assert Keys((), open_without=True).check({}) is None
    closed = Keys((), open_without=False)
    assert not closed.open
    with pytest.raises(ProblemError, match="no API key exists"):
        closed.check({})


def test_a_key_may_be_for_some_models_only() -> None:
    assert allowed(None, "any")
    assert allowed(key("a"), "any")
    assert allowed(key("b", models=("small", "qwen*")), "qwen3")
    assert not allowed(key("b", models=("small", "qwen*")), "llama")
    assert not allowed(key("c", models=()), "llama")
