"""Which verb helps in which state of a model."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core import helps

NO_GPU = "1 waiting, 0 running; box1: GPU 0 has 0.0 of 24.0 GiB free, 10.0 needed"
DRAINED = "min 1, 0 running; box1: is drained since 2026-01-01T00:00:00Z by the operator"
GPU = "min 1, 0 running; box1: 1 of 2 GPUs fit, GPU 3 is drained since 2026-01-01T00:00:00Z by me"
GAVE_UP = "failed (gave up after 5 failures); llmgw clear chat lets it start again"
HELD = "min 1, 0 running; held back"
PAUSE = "`llmgw resume` ends the pause, in which nothing makes room"
SEE = "`llmgw status chat` says what is in the way"


@pytest.mark.parametrize(
    ("state", "why", "more", "said"),
    [
        ("failed", "gave up after 5 failures", {}, "`llmgw clear chat` lets it start again"),
        ("failed", "gave up", {"paused": True}, "`llmgw clear chat` lets it start again"),
        ("waiting", GAVE_UP, {}, ""),
        ("waiting", "blocked; llmgw confirm sha256:9f lets it happen", {}, ""),
        ("waiting", HELD, {"confirm": "sha256:9f"}, "`llmgw confirm sha256:9f` lets what is held "),
        ("waiting", DRAINED, {}, "`llmgw undrain box1` gives it back"),
        ("no_room", GPU, {"paused": True}, "`llmgw undrain box1/3` gives it back"),
        ("waiting", "box1 is drained since 2026-01-01", {}, "`llmgw undrain box1` gives it back"),
        ("waiting", NO_GPU, {"paused": True}, PAUSE),
        ("waiting", NO_GPU, {}, SEE),
        ("no_room", "box1: model file /m does not exist on box1", {}, SEE),
        ("unloaded", "", {}, "`llmgw wake chat` or a request starts it"),
        (
            "unloaded",
            "model file /m does not exist on box1",
            {},
            "put it there, then `llmgw clear c",
        ),
        (
            "unloaded",
            "engine binary /x not found on box1 - set it",
            {},
            "put it there, then `llmgw clear c",
        ),
        ("asleep", "", {}, "`llmgw wake chat` or a request starts it"),
        ("loading", "starting on box1", {}, "it goes on; `llmgw status chat` shows how far it is"),
        ("loaded", "", {}, "it goes on; `llmgw status chat` shows how far it is"),
    ],
)
def test_what_brings_a_model_up(state: str, why: str, more: dict[str, Any], said: str) -> None:
    found = helps.ready("chat", state, why, **more)
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("states", "more", "said"),
    [
        ({"ready"}, {}, "`llmgw stop chat` ends it"),
        ({"ready", "draining"}, {}, "`llmgw stop chat` ends it"),
        ({"draining"}, {"paused": True}, "it is on its way out; `llmgw status chat` says what "),
        ({"ready"}, {"paused": True}, "`llmgw resume` ends the pause, `llmgw stop chat` ends it"),
        ({"ready"}, {"confirm": "sha256:9f"}, "`llmgw confirm sha256:9f` lets what is held back"),
    ],
)
def test_what_ends_a_model(states: set[str], more: dict[str, Any], said: str) -> None:
    assert helps.stopped("chat", frozenset(states), **more).startswith(said)


def test_a_file_that_is_not_there_is_the_fact_on_each_node_that_lacks_it() -> None:
    one = "model file /m/a.gguf does not exist on box1"
    two = "model file /m/a.gguf does not exist on box2"
    more = "put it there, or set another one in profile main of the catalog"
    assert helps.absent(NO_GPU) == ""
    assert helps.absent(f"1 waiting; box1: {one}; {more}; box2: {two}; {more}") == f"{one}; {two}"
    assert helps.absent(f"it was refused 9 s ago ({one}; {more}); llmgw clear chat") == one
    assert helps.absent(f"box1: {one}; nobody goes for it: it was refused ({one}; {more})") == one
