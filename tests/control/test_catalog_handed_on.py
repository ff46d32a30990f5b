"""Each host has a catalog file of its own: the next leader decides by what was in use, not by a file that is old (F34).

An old file is one that was replaced elsewhere since; a file that nobody used before is newer, and counts.
"""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.control import catalogs
from llmgw.control.catalogs import PASSED, Catalogs, Used
from llmgw.control.loop import Control
from llmgw.control.story import Story
from tests.control.bench import Bench, scenario
from tests.control.test_standby import Hand, with_lease


async def renamed(bench: Bench, to: str) -> Any:
    text = bench.catalog.read_text()
    (name,) = bench.control.state.catalog.models
    bench.catalog.write_text(text.replace(name, to))
    return await bench.post("/api/v1/catalog", {})


def other(bench: Bench, name: str, left: bytes) -> tuple[Bench, Hand]:
    """A control of another host, with a catalog file as the first one had it at first."""
    (bench.folder / name).mkdir()
    made = Bench(bench.folder / name)
    hand = with_lease(made, held=True)
    hand.intent, hand.epochs = left, [9]
    return made, hand


def models(control: Control) -> list[str]:
    return list(control.state.catalog.models)


@scenario
async def test_f34_a_file_that_was_replaced_elsewhere_is_not_gone_back_to(bench: Bench) -> None:
    hand = with_lease(bench, held=True)
    async with bench.running():
        await renamed(bench, "beta")
        await bench.later(1)
    second, hand2 = other(bench, "second", hand.intent)
    async with second.running() as control:
        assert models(control) == ["beta"]
        said = (await second.get("/api/v1/status"))["catalog"]["error"]
        assert "is older than the catalog" in said
        assert "which stays in use" in said
        await second.later(1)
    third, hand3 = other(bench, "third", hand2.intent)
    async with third.running() as control:
        assert models(control) == ["beta"], "it is handed on as it is"
        await third.post("/api/v1/catalog", {})  # an operator's word for the file here
        assert models(control) == ["alpha"]
        assert (await third.get("/api/v1/status"))["catalog"]["error"] is None
        await third.later(1)
    fourth, _ = other(bench, "fourth", hand3.intent)
    async with fourth.running() as control:
        assert models(control) == ["alpha"]
        assert not control.catalogs.error


@scenario
async def test_f34_a_file_that_nobody_used_before_counts(bench: Bench) -> None:
    hand = with_lease(bench, held=True)
    async with bench.running():
        await renamed(bench, "beta")
        await bench.later(1)
    second, hand2 = other(bench, "second", hand.intent)
    second.catalog.write_text(second.catalog.read_text().replace("alpha", "gamma"))
    async with second.running() as control:
        assert models(control) == ["gamma"]
        assert not control.catalogs.error
        await second.later(1)
    third, _ = other(bench, "third", hand2.intent)
    third.catalog.write_text(bench.catalog.read_text())  # beta is old by now
    async with third.running() as control:
        assert models(control) == ["gamma"]


@scenario
async def test_f11_a_file_that_cannot_be_read_is_replaced_by_what_was_in_use(bench: Bench) -> None:
    hand = with_lease(bench, held=True)
    async with bench.running():
        await renamed(bench, "beta")
        await bench.later(1)
    second, _ = other(bench, "second", hand.intent)
    second.catalog.write_text("models: [")
    async with second.running() as control:
        assert models(control) == ["beta"]


@scenario
async def test_a_text_that_is_too_large_to_leave_is_said(bench: Bench) -> None:
    hand = with_lease(bench, held=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogs, "TEXT_BYTES", 10)
        async with bench.running():
            await renamed(bench, "beta")
            await bench.later(1)
    assert b"fake" not in hand.intent
    second, _ = other(bench, "second", hand.intent)
    async with second.running() as control:
        assert models(control) == ["alpha"]
        assert "whose text is not at hand" in control.catalogs.error


def test_so_many_old_ones_are_known_and_one_that_is_used_again_is_none() -> None:
    made = Catalogs(__file__, Story())  # type: ignore[arg-type]
    for number in range(2 * PASSED):
        made._pass(f"d{number}")
    assert len(made.passed) == PASSED
    assert made.passed[-1] == f"d{2 * PASSED - 1}"
    assert made.used == Used(passed=made.passed)
