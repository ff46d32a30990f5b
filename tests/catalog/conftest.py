"""How the tests here call the catalog: a text in, or every problem with it out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw import catalog
from llmgw.core.types.catalog import Catalog, Profile
from llmgw.errors import CatalogError

#: Lines 1 to 5 of a catalog with one model and one profile; a test goes on with the profile's keys from line 6.
ONE = """\
version: 1
models:
  q:
    profiles:
      - name: main
"""


@pytest.fixture
def refused() -> Callable[[str], tuple[str, ...]]:
    """The problems of a text, without the file's name; the test fails when it loads."""

    def problems(text: str) -> tuple[str, ...]:
        with pytest.raises(CatalogError) as caught:
            catalog.loads(text, "c.yaml")
        return tuple(problem.removeprefix("c.yaml:") for problem in caught.value.problems)

    return problems


@pytest.fixture
def profile() -> Callable[..., Profile]:
    """The one profile of a catalog, from the profile's lines and what else stands in the file."""

    def load(lines: str, *, rest: str = "") -> Profile:
        return catalog.loads(one(lines) + rest).models["q"].profiles[0]

    return load


@pytest.fixture
def loaded() -> Callable[[str], Catalog]:
    return catalog.loads


def one(lines: str) -> str:
    indented = "".join(f"        {line}\n" for line in lines.splitlines())
    return ONE + indented


@pytest.fixture
def in_profile() -> Callable[[str], str]:
    """A whole catalog around the lines of one profile, which begin on line 6, column 9."""
    return one
