"""`${…}`: what the agent will be able to fill in, and where a secret may stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw.catalog.placeholders import (
    check_argument,
    check_env_name,
    check_text,
    check_weights,
    used,
)
from llmgw.core.types.catalog import PLACEHOLDERS
from llmgw.errors import UsageError


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "$",
        "$HOME and $$",
        '{"a": {"b": 1}}',
        "{}",
        "}",
        "$${port} is literal",
        "$${",
        "${host}:${port}",
        "${env.HOME}/x",
        "${file./etc/key}",
        *(f"${{{name}}}" for name in sorted(PLACEHOLDERS)),
    ],
)
def test_taken(text: str) -> None:
    check_text(text)


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("${prot}", "unknown placeholder ${prot}", "did you mean ${port}?"),
        ("${PORT}", "unknown placeholder ${PORT}", "known: api_key "),
        ("${}", "unknown placeholder ${}", "known: api_key "),
        ("${ port }", "unknown placeholder ${ port }", "did you mean ${port}?"),
        ("x ${port", '"x ${port" opens a ${ and never closes it', "close it, or write $${"),
        ("${a{b}}", '"${a{b}}" opens a ${ and never closes it', "close it, or write $${"),
        ("$$${prot}", "unknown placeholder ${prot}", "did you mean ${port}?"),
        ("${env.}", "${env.} names no variable", "write ${env.NAME}"),
        ("${env.A-B}", "${env.A-B} names no variable", "write ${env.NAME}"),
        ("${env}", "unknown placeholder ${env}", ""),
        ("${file.key}", "${file.key} is not an absolute path", "write ${file./path/to/it}"),
        ("${port.x}", "unknown placeholder ${port.x}", "did you mean ${port}?"),
    ],
)
def test_refused(text: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_text(text)
    assert caught.value.message == what
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "text",
    ["…", "...", "/models/…", "/models/...", "/path/to/model.gguf", "/path/to", "/path/to:/models",
     "--model=/path/to/x", "CHANGE_ME", "sk-changeme", "change-me"],
)  # fmt: skip
def test_what_somebody_was_to_fill_in(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_text(text)
    assert caught.value.message == f'"{text}" was to be filled in'
    assert caught.value.hint == "write your own path or value in its place"


@pytest.mark.parametrize(
    "text", ["a … b", "wait...", "/my/path/to/x", "/path/too", "change", "exchange me", "/a/...b"]
)
def test_what_only_looks_like_it(text: str) -> None:
    check_text(text)


def test_no_key_in_a_command_where_ps_shows_it() -> None:
    check_text("${api_key}")
    check_argument("$${api_key}")
    with pytest.raises(UsageError, match="shows in `ps`"):
        check_argument("--key=${api_key}")


def test_weights_cannot_hold_themselves() -> None:
    check_weights("${env.MODELS}/a.gguf")
    with pytest.raises(UsageError, match="inside weights"):
        check_weights("${weights}")


@pytest.mark.parametrize(
    "name", ["LLMGW_NODE", "CUDA_VISIBLE_DEVICES", "LISTEN_FDS", "NOTIFY_SOCKET", "SPT_NOENV"]
)
def test_what_the_agent_sets_itself_is_not_ours_to_set(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        check_env_name(name)


@pytest.mark.parametrize("check", [check_env_name])
def test_other_variables_are(check: Callable[[str], None]) -> None:
    for name in ("GGML_CUDA_ENABLE_UNIFIED_MEMORY", "HF_TOKEN", "LISTENER", "MY_LLMGW_X"):
        check(name)


def test_used() -> None:
    assert used("${a} $${b} {c} ${d.e}") == ["a", "d.e"]
