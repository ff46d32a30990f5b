"""The declaration of keys against the core's own defaults, and against itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from msgspec import NODEFAULT, Struct

from llmgw import catalog
from llmgw.catalog import keys
from llmgw.catalog.read import Reader, wanted
from llmgw.catalog.source import Pos, Problems, Scalar
from llmgw.core.types.catalog import Catalog, Model, Profile


def structs(struct: type[Struct]) -> Iterator[type[Struct]]:
    yield struct
    for field in keys.declared(struct):
        yield from inner(field.type)


def inner(kind: Any) -> Iterator[type[Struct]]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield from structs(kind)
    for part in get_args(kind):
        yield from inner(part)


ALL = sorted(set(structs(keys.CatalogFile)), key=lambda struct: struct.__name__)


def test_what_is_left_out_comes_to_the_core_s_own_defaults() -> None:
    """Two declarations of one default may never differ."""
    got = catalog.loads("version: 1\nmodels: {q: {profiles: [{name: main, command: [x]}]}}\n")
    want = Profile(
        name="main", command=("x",), fingerprints=got.models["q"].profiles[0].fingerprints
    )
    assert got == Catalog(models={"q": Model(name="q", profiles=(want,))}, digest=got.digest)


@pytest.mark.parametrize("struct", ALL)
def test_every_key_is_described_in_one_sentence(struct: type[Struct]) -> None:
    for field in keys.declared(struct):
        metas = [meta for meta in field.type.__metadata__ if meta.description]
        assert len(metas) == 1, field.name
        assert metas[0].description.endswith("."), field.name


@pytest.mark.parametrize("struct", ALL)
def test_every_default_is_a_value_that_the_reader_takes(struct: type[Struct]) -> None:
    for name, want in wanted(struct).items():
        default = next(field.default for field in keys.declared(struct) if field.name == name)
        if default is NODEFAULT or not isinstance(default, str | int | float):
            continue
        text = str(default).lower() if isinstance(default, bool) else str(default)
        problems = Problems()
        got = Reader(problems).value(Scalar(Pos("f"), text), want, name)
        assert not problems, problems.texts()
        assert got == default
