"""Fields nobody here knows survive being read and written (F56), whatever they are and wherever they stand."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire.unknown import merged, unknown

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner),
    max_leaves=12,
)


def test_a_field_inside_a_struct_and_inside_a_list_is_kept() -> None:
    raw = {"a": 1, "new": [7], "in": {"b": 2, "new": 3}, "peers": [{"c": 1}, {"c": 2, "new": 4}]}
    known = {"a": 1, "in": {"b": 2, "d": 0}, "peers": ({"c": 1}, {"c": 2})}
    kept = unknown(raw, known)
    assert kept == {"new": [7], "in": {"new": 3}, "peers": {"1": {"new": 4}}}
    assert merged(known, kept) == raw | {"in": {"b": 2, "new": 3, "d": 0}}


def test_what_has_become_known_since_counts() -> None:
    assert merged({"a": 2, "in": {"b": 1}}, {"a": 1, "in": 5}) == {"a": 2, "in": {"b": 1}}
    assert merged({"peers": []}, {"peers": {"0": {"new": 1}}}) == {"peers": []}


def pruned(value: Any, names: set[str]) -> Any:
    """As if read by a version that does not know these names."""
    if isinstance(value, dict):
        return {k: pruned(v, names) for k, v in value.items() if k not in names}
    return [pruned(v, names) for v in value] if isinstance(value, list) else value


@given(JSON, st.sets(st.sampled_from("abcd")))
def test_nothing_is_lost(raw: Any, names: set[str]) -> None:
    known = pruned(raw, names)
    kept = json.loads(json.dumps(unknown(raw, known)))
    assert merged(known, kept) == raw
    assert merged(known, unknown(known, known)) == known
