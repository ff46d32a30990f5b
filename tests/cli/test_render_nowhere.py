"""`llmgw status` on a model that waits and fits nowhere: one line with all facts."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.render import status

EMPTY = "not even with nothing else running"
HERE = "box1: has no GPU"
FAR: dict[str, Any] = {
    "name": "far",
    "aliases": [],
    "state": "waiting",
    "min": 1,
    "max": 1,
    "ready": 0,
    "waiting": 0,
    "idle_until": None,
    "why": f"min 1, 0 running; {HERE}",
}


def said(warnings: list[str], **model: Any) -> list[str]:
    return status.complaints(
        {"nodes": [], "models": [FAR | model], "replicas": [], "warnings": warnings}
    )


def test_it_waits_and_fits_nowhere_in_one_line() -> None:
    assert said([f"far fits nowhere, {EMPTY}: {HERE}", "else"]) == [
        f"warning: model far is waiting, 0 of 1 ready: min 1, 0 running; fits nowhere, {EMPTY}: {HERE}",
        "warning: else",
    ]


def test_another_reason_than_the_one_it_waits_for_is_kept_beside_it() -> None:
    """With nothing running it lacks something else than it does just now."""
    more = f"fits nowhere, {EMPTY}: box1: 1 GPU, 2 wanted"
    assert said([f"far {more}"]) == [
        f"warning: model far is waiting, 0 of 1 ready: min 1, 0 running; {HERE}; {more}"
    ]


@pytest.mark.parametrize("why", ["", None])
def test_with_no_reason_of_its_own(why: str | None) -> None:
    (line,) = said([f"far fits nowhere, {EMPTY}: {HERE}"], why=why)
    assert line == f"warning: model far is waiting, 0 of 1 ready: fits nowhere, {EMPTY}: {HERE}"


def test_one_that_is_asked_for_by_nobody_has_the_line_alone() -> None:
    alone = f"far fits nowhere, {EMPTY}: {HERE}"
    assert said([alone], state="unloaded", min=0, why="") == [f"warning: {alone}"]


def test_it_is_not_taken_from_a_model_of_a_like_name() -> None:
    other = f"far-2 fits nowhere, {EMPTY}: {HERE}"
    assert said([other]) == [
        f"warning: model far is waiting, 0 of 1 ready: min 1, 0 running; {HERE}",
        f"warning: {other}",
    ]
