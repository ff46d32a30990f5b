"""The stories of acceptance.md as scripts: what happens is what the file says (`python -m tests.sim --rewrite`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.commands import Commands
from tests.sim.script import difference, parse, scripts


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    changed = difference(path)
    assert not changed, f"{changed}\n\nif that is right: python -m tests.sim --rewrite {path}"


def test_every_word_has_its_manual() -> None:
    """`python -m tests.sim --words` prints them."""
    for word, text in Commands().manual().items():
        assert text.startswith(f"`{word}"), f"{word}: its manual begins with how it is written"


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_a_script_says_what_it_shows(path: Path) -> None:
    prose, blocks = parse(path.read_text())
    assert prose.startswith(("# A", "# F")), "first the statement it replays"
    assert blocks
    assert all(block.expected for block in blocks)
