"""Sizes and durations: what is taken, what is refused, and that the spelling goes both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.catalog.units import duration_text, parse_duration, parse_size, size_text
from llmgw.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("18GiB", 18 << 30),
        ("24GB", 24_000_000_000),
        ("512MiB", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("4KB", 4000),
        ("2TiB", 2 << 40),
        ("0B", 0),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("18", "which unit? write 18GiB or 18MiB"),
        ("18G", "write 18GiB"),
        ("18 GiB", "write 18GiB"),
        ("512m", "write 512MiB"),
        ("4gb", "write 4GiB"),
        ("3Ti", "write 3TiB"),
        ("7kb", "write 7KiB"),
        ("lots", "like 18GiB, 512MiB or 24GB"),
        ("-1GiB", "like 18GiB, 512MiB or 24GB"),
        ("٣GiB", "like 18GiB, 512MiB or 24GB"),
        ("", "like 18GiB, 512MiB or 24GB"),
        ("999999999TiB", "check the unit"),
        ("1" * 99 + "GiB", "like 18GiB, 512MiB or 24GB"),
    ],
)
def test_size_refused(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("0s", 0.0),
        ("never", None),
    ],
)
def test_duration(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("90", "which unit? write 90s, 90m or 90h"),
        ("5 min", "write 5m"),
        ("5min", "write 5m"),
        ("2H", "write 2h"),
        ("3weeks", "write 3s"),
        ("1h30m", "like 90s, 10m, 2h or never"),
        ("-5s", "like 90s, 10m, 2h or never"),
        ("Never", "like 90s, 10m, 2h or never"),
        ("1e3s", "like 90s, 10m, 2h or never"),
    ],
)
def test_duration_refused(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert caught.value.hint == hint


@given(st.integers(0, 1 << 59))
def test_a_size_is_spelt_so_that_it_parses_to_itself(size: int) -> None:
    assert parse_size(size_text(size)) == size


@given(st.integers(0, 10**8))
def test_a_duration_is_spelt_so_that_it_parses_to_itself(seconds: int) -> None:
    assert parse_duration(duration_text(float(seconds))) == seconds


def test_spelling() -> None:
    assert [size_text(n) for n in (0, 18 << 30, 24_000_000_000, 1)] == ["0B", "18GiB", "24GB", "1B"]
    assert [duration_text(s) for s in (None, 0.0, 0.25, 90.0, 600.0, 7200.0, 1.5)] == [
        "never",
        "0ms",
        "250ms",
        "90s",
        "10m",
        "2h",
        "1.5s",
    ]
