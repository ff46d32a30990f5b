"""What clients read from the gateway itself: names, errors in the shape of their API, the model list."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.types.routes import RouteModel, RouteTable
from llmgw.gateway import openai
from llmgw.gateway.openai import Names, ProblemError


def test_only_model_and_stream_are_read() -> None:
    asked = openai.asked(
        b'{"messages": [{"model": "inner"}], "model": "m", "stream": true, "x": NaN0}'.replace(
            b"NaN0", b"1"
        )
    )
    assert (asked.model, asked.stream) == ("m", True)
    assert openai.asked(b'{"model": "a", "model": "b"}').model == "b", (
        "engines take the last one too"
    )
    assert openai.asked(b'{"model": "m", "stream": null}').stream is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"m"',
        b"{}",
        b'{"model": null}',
        b'{"model": 1}',
        b'{"model": ""}',
        b'{"model": ["m"]}',
        b"\xff\xfe",
    ],
)
def test_a_body_that_names_no_model(body: bytes) -> None:
    with pytest.raises(ProblemError, match="the body is refused") as e:
        openai.asked(body)
    assert (e.value.status, e.value.code) == (400, "invalid_body")


def test_a_body_nested_too_deeply() -> None:
    deep = b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(ProblemError, match="nested too deeply"):
        openai.asked(deep)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON), st.text(min_size=1))
def test_a_renamed_body_differs_in_its_model_only(fields: dict[str, Any], model: str) -> None:
    body = json.dumps({**fields, "model": "alias"}).encode()
    assert json.loads(openai.renamed(body, model)) == {**fields, "model": model}


def test_values_go_on_byte_for_byte() -> None:
    body = b'{"a":1.50e3 , "model":"x", "b":"\\u00e9\\/"}'
    assert openai.renamed(body, "y") == b'{"a":1.50e3,"model":"y","b":"\\u00e9\\/"}'


TABLE = RouteTable(
    models={
        "qwen3": RouteModel(aliases=("coder", "gpt-*", "small")),
        "small": RouteModel(aliases=("gpt-mini", "*")),
    }
)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("qwen3", "qwen3"),
        ("coder", "qwen3"),
        ("small", "small"),
        ("gpt-mini", "small"),
        ("gpt-large", "qwen3"),
        ("anything", "small"),
    ],
)
def test_own_name_then_alias_then_glob(name: str, model: str) -> None:
    assert Names(TABLE).resolve(name) == model


def test_an_unknown_name_hears_of_the_nearest() -> None:
    names = Names(RouteTable(models={"qwen3-coder": RouteModel()}))
    assert names.resolve("qwen-coder") is None
    problem = names.unknown("qwen-coder", ["qwen3-coder", "llama"])
    assert (problem.status, problem.code) == (404, "model_not_found")
    assert problem.hint == "did you mean qwen3-coder?"
    assert "GET /v1/models" in names.unknown("zzz", ["qwen3-coder"]).hint
    assert len(names.unknown("z" * 10_000, []).message) < 200


PROBLEM = ProblemError(503, "model_failed", "it failed", "try again", detail={"stage": "failed"})


def test_errors_in_openais_shape() -> None:
    assert openai.error_document(PROBLEM, "openai", "id-1") == {
        "error": {
            "type": "server_error",
            "param": None,
            "message": "it failed",
            "code": "model_failed",
            "hint": "try again",
            "stage": "failed",
        }
    }
    event = openai.error_event(PROBLEM, "openai", "id-1")
    assert event.startswith(b'\n\ndata: {"error":{')
    assert event.endswith(b"}\n\n")


def test_errors_in_anthropics_shape() -> None:
    document = openai.error_document(PROBLEM, "anthropic", "id-1")
    assert document["type"] == "error"
    assert document["error"]["type"] == "overloaded_error"
    assert document["request_id"] == "id-1"
    event = openai.error_event(PROBLEM, "anthropic", "id-1")
    assert event.startswith(b'\n\nevent: error\ndata: {"type":"error","error":{')


def test_errors_in_a_stream_of_responses() -> None:
    event = openai.error_event(PROBLEM, "responses", "id-1")
    data = json.loads(event.split(b"data: ")[1])
    assert data["type"] == "error", "by which clients tell events apart"
    assert data["message"] == "it failed"
    assert data["code"] == "model_failed"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 429, 501, 502, 503])
def test_every_status_has_a_type(status: int) -> None:
    problem = ProblemError(status, "c", "m")
    for dialect in ("openai", "anthropic"):
        kind = openai.error_document(problem, dialect, "i")["error"]["type"]
        assert kind.endswith(("_error", "_too_large"))
    assert json.loads(openai.error_body(problem, "openai", "i"))["error"]["message"] == "m"


def test_the_model_list() -> None:
    shown = RouteModel(aliases=("a",), context=4096, status="loading", progress=0.5, why="3 of 6")
    listed = msgspec.json.decode(
        openai.model_list([("m", shown), ("hidden", RouteModel(listed=False))])
    )
    assert listed["object"] == "list"
    (m,) = listed["data"]
    assert m["id"] == "m"
    assert m["object"] == "model"
    assert m["owned_by"] == "llmgw"
    assert m["context_length"] == m["max_model_len"] == 4096
    assert m["aliases"] == ["a"]
    assert m["status"]["value"] == "loading"
    assert m["meta"] == {"kind": "chat"}
