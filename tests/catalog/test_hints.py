"""What was probably meant by a key that does not exist."""

from __future__ import annotations

import pytest
from msgspec import Struct

from llmgw.catalog import keys
from llmgw.catalog.hints import for_key


@pytest.mark.parametrize(
    ("word", "struct", "hint"),
    [
        ("idle_timout", keys.Scaling, 'did you mean "idle_timeout"?'),
        ("model", keys.CatalogFile, 'did you mean "models"?'),
        # other tools' words
        ("ttl", keys.Model, 'did you mean "scaling.idle_timeout"?'),
        ("cmd", keys.Profile, 'did you mean "command"?'),
        ("nnodes", keys.Profile, 'did you mean "nodes"?'),
        ("vram", keys.Profile, 'did you mean "gpu_memory"?'),
        ("ttl", keys.Profile, 'did you mean "models.NAME.scaling.idle_timeout"?'),
        # the right word in the wrong place
        ("gpus", keys.Model, "it belongs in profiles"),
        ("min", keys.Model, "it belongs in scaling"),
        ("idle_timeout", keys.Defaults, "it belongs in scaling"),
        ("scaling", keys.Profile, "it belongs in models.NAME"),
        ("models", keys.Profile, "it belongs in the top level"),
        ("gpu_memory", keys.Engine, "it belongs in models.NAME.profiles"),
        ("stray_grace", keys.Model, "it belongs in defaults"),
        # nearly the right word in the wrong place
        ("gpu_memoryy", keys.Model, 'did you mean "profiles.gpu_memory"?'),
        ("zzzz", keys.Circuit, "known here: power_w"),
    ],
)
def test_hint(word: str, struct: type[Struct], hint: str) -> None:
    assert for_key(word, struct) == hint


def test_a_monstrous_key_costs_nothing() -> None:
    assert for_key("x" * 500_000, keys.Circuit) == "known here: power_w"
