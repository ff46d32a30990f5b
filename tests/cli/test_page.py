"""What a table looks like through a pipe and on terminals of any width, with colour and without. Nothing is lost."""

import io
import re
from collections import Counter

import pytest
from typing_extensions import override

from llmgw.render import page
from llmgw.render.page import Look, Table

WHY = "a sentence that is much longer than a narrow terminal is wide, and must not be cut anywhere"
PARTS: list[Table | str] = [
    Table(("VERDICT", "WHY"), [["= adopt", "short"], ["- stop", WHY]]),
    "a line",
]


def shown(look: Look) -> str:
    out = io.StringIO()
    page.show(PARTS, look, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plain, with a\ttab", "plain, with a\ttab"),
        ("\x1b[1;31mred\x1b[0m and \x1b[38;5;208morange\x1b[m", "red and orange"),
        ("\x1b]0;owned\x07 \x1b[2J 5%\r10%", r"\x1b]0;owned\x07 \x1b[2J 5%\r10%"),
    ],
)
def test_an_engines_log_cannot_steer_the_terminal(line: str, said: str) -> None:
    assert page.quoted(line) == said


def test_a_pipe_gets_everything_plain() -> None:
    said = shown(Look(terminal=False, color=False))
    assert said == f"VERDICT  WHY\n= adopt  short\n- stop   {WHY}\na line\n"


def test_a_terminal_wraps_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    said = shown(Look(terminal=True, color=False))
    assert "\x1b" not in said
    assert max(map(len, said.splitlines())) <= 40
    assert WHY in " ".join(said.replace("- stop", "").split())


NAMES = (
    "gpt-oss-120b-mxfp4",
    "gpt-oss-120b-mxfp4-7k2m",
    "a-node-of-a-long-name",
    "loading 63% eta 4m10s",
)
LONG = Table(("MODEL", "REPLICA", "NODE", "STATE", "WHERE"), [[*NAMES, "gpu 36/36"], [*NAMES, "-"]])


@pytest.mark.parametrize("width", [12, 20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("head", [LONG.head, ()])
def test_no_width_loses_anything_or_is_overrun(
    width: int, head: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, columns beyond the width were cut to their first letters, and those after them away."""
    monkeypatch.setenv("COLUMNS", str(width))
    out = io.StringIO()
    page.show([Table(head, LONG.rows)], Look(terminal=True, color=False), out)
    assert max(map(len, out.getvalue().splitlines())) <= width
    said, whole = (
        Counter(text.replace("-", "").replace(" ", "").replace("\n", ""))
        for text in (out.getvalue(), "".join(cell for row in LONG.rows for cell in row))
    )
    assert whole <= said if head else whole == said
    for cell in (*NAMES, "gpu 36/36"):
        parts = re.split(r"[-\s]+", cell)
        if width >= 40:
            assert all(part in out.getvalue() for part in parts), (cell, out.getvalue())
    if width >= 100:
        assert len(out.getvalue().splitlines()) == 2 + bool(head)


def test_letters_of_the_east_are_two_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = Table(("A", "B"), [["\u65e5\u672c", "x"], ["abcd", "y"]])
    said = page.text([table], Look(terminal=True, color=False)).splitlines()
    assert said == ["A     B", "\u65e5\u672c  x", "abcd  y"]


def test_colour_repeats_what_the_words_say() -> None:
    said = shown(Look(terminal=False, color=True))
    assert "\x1b[" in said
    bare = re.sub(r"\x1b\[[0-9;]*m", "", said)
    assert [line.rstrip() for line in bare.splitlines()] == [
        "VERDICT  WHY",
        "= adopt  short",
        f"- stop   {WHY}",
        "a line",
    ]


def test_a_name_or_a_time_that_has_no_room_is_shown_whole_in_a_row_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken at its hyphens nobody could copy it; words that are longer than a name still fold."""
    name, at = "a-client-with-a-long-name", "2026-12-01T12:55:52Z"
    rows = [[name, "2 3", at], ["ann", "2 3 4 5 6 7 8 9", at]]
    narrow = Table(("NAME", "MODELS", "CREATED"), rows)
    monkeypatch.setenv("COLUMNS", "50")
    said = page.text([narrow], Look(terminal=True, color=False)).splitlines()
    assert said[:4] == [f"NAME     {name}", "MODELS   2 3", f"CREATED  {at}", ""]
    monkeypatch.setenv("COLUMNS", "60")
    said = page.text([narrow], Look(terminal=True, color=False)).splitlines()
    assert said[1].split() == [name, "2", "3", at], said
    hashed = [["box1", "a" * 90]]
    said = page.text(
        [Table(("NODE", "WHY"), hashed)], Look(terminal=True, color=False)
    ).splitlines()
    assert said[0].split() == ["NODE", "WHY"]
    assert "".join(line.split()[-1] for line in said[1:]) == "a" * 90


class Screen(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("choice", "no_color", "stream", "want"),
    [
        ("auto", "", Screen(), Look(terminal=True, color=True)),
        ("auto", "1", Screen(), Look(terminal=True, color=False)),
        ("never", "", Screen(), Look(terminal=True, color=False)),
        ("always", "1", io.StringIO(), Look(terminal=False, color=True)),
        ("auto", "", io.StringIO(), Look(terminal=False, color=False)),
    ],
)
def test_who_gets_colour(
    choice: str, no_color: str, stream: io.StringIO, want: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    assert page.look(choice, stream) == want


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "-"), (-1, "0s"), (8, "8s"), (312, "5m12s"), (273600, "3d4h")]
)
def test_ages(seconds: float | None, said: str) -> None:
    assert page.age(seconds) == said


@pytest.mark.parametrize("terminal", [True, False])
def test_what_others_said_cannot_steer_the_terminal(*, terminal: bool) -> None:
    """Names and last words come from engines and other boxes."""
    out = io.StringIO()
    parts: list[Table | str] = [
        Table(["NODE"], [["\x1b]0;owned\x07box\u202e"]]),
        "one\ntwo \x1b[2J\x9b",
    ]
    page.show(parts, Look(terminal=terminal, color=False), out)
    assert r"\x1b]0;owned\x07box\u202e" in out.getvalue()
    assert "one\ntwo \\x1b[2J\\x9b\n" in out.getvalue()


def test_a_warning_is_broken_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    warning = f"warning: {WHY}"
    for color in (False, True):
        said = re.sub(r"\x1b\[[0-9;]*m", "", page.text([warning], Look(terminal=True, color=color)))
        assert max(map(len, said.splitlines())) <= 40
        assert " ".join(said.split()) == warning
        bare = re.sub(
            r"\x1b\[[0-9;]*m", "", page.text([warning], Look(terminal=False, color=color))
        )
        assert bare == f"{warning}\n"


@pytest.mark.parametrize("color", [False, True])
def test_no_line_of_a_narrow_table_ends_in_blanks(
    monkeypatch: pytest.MonkeyPatch, *, color: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table = Table(
        ("STATE", "WHERE"), [["ready", "a-long-name-of-a-node-that-folds"], ["= adopt", "x"]]
    )
    said = page.text([table], Look(terminal=True, color=color))
    bare = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    assert bare == [line.rstrip() for line in bare]


@pytest.mark.parametrize("width", [70, 80, 100, 200])
def test_long_names_of_models_fold_so_that_the_table_stays_one(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first `status` of most: a file's name is the model's, and its replica is called after it."""
    name = "SmolLM2-135M-Instruct-Q4_K_M"
    head = ("MODEL", "REPLICA", "NODE", "GPU", "STATE", "REQS", "IDLE UNTIL", "AGE", "WHERE")
    row = [name, f"{name}-7k2", "box1", "-", "ready", "-", "15:09:00 in 9m", "1m12s", "cpu"]
    monkeypatch.setenv("COLUMNS", str(width))
    bare = Look(terminal=True, color=False)
    folded = page.text([Table(head, [row], frozenset(head[:2]))], bare).splitlines()
    assert max(map(len, folded)) <= width
    at = [line for line in folded if "box1" in line]
    assert len(at) == 1
    assert at[0].split()[2:6] == ["box1", "-", "ready", "-"]
    whole = "".join(line[: at[0].index("box1")].replace(" ", "") for line in folded)
    assert whole.count("Instruct-") == 2
    assert (len(folded) == 2) == (width == 200)
    unfolded = page.text([Table(head, [row])], bare)
    assert (f"MODEL       {name}\n" in unfolded) == (width < 200), (
        "names to be copied are not broken"
    )


def test_a_table_that_folds_is_shown_row_by_row_where_nothing_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    said = page.text(
        [Table(("A", "B"), [["a-name-of-a-model", "x-y-z" * 4]], frozenset("AB"))],
        Look(terminal=True, color=False),
    )
    assert said.startswith("A  a-name-")
