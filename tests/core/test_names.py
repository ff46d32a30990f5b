"""A name that nobody has, in one wording for all that can be named (llmgw.core.names)."""

from __future__ import annotations

import pytest

from llmgw.core.names import KNOWN, instead, nearest, plain, unknown
from llmgw.errors import UsageError

RUN = "`llmgw status` shows what there is"


def said(name: str, known: list[str], where: str = "") -> tuple[str, str]:
    error = unknown("model", name, known, RUN, where=where)
    assert (error.code, error.status) == ("not_found", 404)
    return error.message, error.hint


def test_the_near_one_is_offered_with_what_to_run() -> None:
    assert said("alhpa", ["alpha", "beta"]) == (
        "there is no model called alhpa",
        f"did you mean alpha? {RUN}",
    )


def test_with_none_near_those_that_there_are_are_named() -> None:
    assert said("zzz", ["alpha", "beta"], where=" here") == (
        "there is no model called zzz here",
        f"known: alpha, beta; {RUN}",
    )
    assert said("zzz", []) == ("there is no model called zzz", RUN)


def test_a_list_of_names_says_that_it_is_cut() -> None:
    many = [f"m{n:02}" for n in range(KNOWN + 1)]
    assert instead("", many[:KNOWN], RUN).endswith(f"m{KNOWN - 1}; {RUN}")
    assert instead("", many, RUN).endswith(f"m{KNOWN - 1}, …; {RUN}")


@pytest.mark.parametrize("name", ["", " ", "\n", "\x00"])
def test_no_name_at_all_is_a_mistake_in_the_call(name: str) -> None:
    error = unknown("API key", name, ["ann"], RUN)
    assert isinstance(error, UsageError)
    assert (error.message, error.hint) == (
        "API key: a name is needed, and an empty one was given",
        RUN,
    )


def test_a_name_gives_no_orders_to_a_terminal_and_is_no_text() -> None:
    message, _ = said("\x1b[2Jx" + "y" * 500, [])
    assert message.startswith("there is no model called [2Jxyyy")
    assert len(message) < 110
    assert plain("a\n\tb") == "a b"


def test_a_word_that_is_endless_is_compared_by_its_beginning() -> None:
    assert nearest("idle_timout", ["idle_timeout", "min_up"]) == "idle_timeout"
    assert nearest("alpah" * 100_000, ["alpha"]) == ""
