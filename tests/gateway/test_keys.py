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


HEAD = {b"authorization": b"Bearer carol"}


def test_so_many_at_a_time_and_no_more() -> None:
    keys = Keys((key("carol", limits={"in_flight": 2}),), open_without=True)
    first, second = keys.begin(HEAD, 0.0), keys.begin(HEAD, 0.0)
    assert first is second is not None
    with pytest.raises(ProblemError, match="2 requests in flight, and 2 is its limit") as e:
        keys.begin(HEAD, 0.0)
    assert (e.value.status, e.value.code, e.value.retry_after_s) == (429, "rate_limit_exceeded", 1)
    first.end()
    assert keys.begin(HEAD, 0.0) is first


def test_so_many_a_minute_and_the_refusal_says_when() -> None:
    keys = Keys((key("carol", limits={"per_minute": 3}),), open_without=True)
    for _ in range(3):
        use = keys.begin(HEAD, 100.0)
        assert use
        use.end()
    with pytest.raises(ProblemError, match="its 3 requests a minute are used up") as e:
        keys.begin(HEAD, 100.0)
    assert e.value.retry_after_s == 20
    with pytest.raises(ProblemError):
        keys.begin(HEAD, 119.0)
    assert keys.begin(HEAD, 120.5)
    # A quiet hour saves up no more than a minute's worth.
    for _ in range(3):
        keys.begin(HEAD, 4000.0)
    with pytest.raises(ProblemError):
        keys.begin(HEAD, 4000.0)


def test_a_new_table_does_not_begin_the_count_anew_and_a_changed_limit_does() -> None:
    old = Keys((key("carol", limits={"in_flight": 1}),), open_without=True)
    use = old.begin(HEAD, 0.0)
    assert use
    same = Keys((key("carol", limits={"in_flight": 1}, models=("m",)),), open_without=True)
    same = same.following(old)
    with pytest.raises(ProblemError, match="1 requests in flight"):
        same.begin(HEAD, 1.0)
    assert use.key.models == ("m",)
    more = Keys((key("carol", limits={"in_flight": 2}),), open_without=True).following(same)
    assert more.begin(HEAD, 2.0)
    use.end()  # of the request that began under the old limit: it hurts nobody
    assert more.begin(HEAD, 2.0)
    gone = Keys((), open_without=True).following(more)
    assert gone.begin(HEAD, 3.0) is None


def test_a_refused_request_counts_for_nothing() -> None:
    keys = Keys((key("carol", limits={"in_flight": 1, "per_minute": 2}),), open_without=True)
    use = keys.begin(HEAD, 0.0)
    assert use
    for _ in range(5):
        with pytest.raises(ProblemError):
            keys.begin(HEAD, 0.0)
    use.end()
    assert keys.begin(HEAD, 0.0) is use
