"""Every verb's answer through a pipe, on terminals narrow and wide, without colour, without UTF-8, without a reader.

What is shown on a terminal is decided by real ones (pty(7)); what the words are is for the tests of each verb.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.fleet import Fleet, wait_for
from tests.e2e.conftest import fake, model, write_catalog

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
BOXES = re.compile("[\u2500-\u257f\u2026]")
LONG = "qwen3.8-coder-next-480b-a35b-instruct"
CARD = "NVIDIA RTX PRO 6000 Blackwell Max-Q"
GPUS = [
    {"uuid": f"GPU-{i}", "index": i, "name": CARD, "memory": 96 << 30, "memory_used": 1 << 30}
    for i in range(2)
]
REMARK = "gr\u00f6\u00dfere L\u00fcfter \U0001f600"
VERBS = (
    ("status",), ("status", "-o", "wide"), ("status", LONG), ("adopt", "--dry-run"), ("adopt",), ("events", "-n", "9"),
    ("key", "list"), ("catalog", "show"), ("catalog", "check"), ("doctor",), ("wake", LONG, "--dry-run"),
    ("logs", LONG, "--tail", "300"), ("version",), ("--help",), ("status", "--help"),
)  # fmt: skip


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A long name, a model that fails, a pause with a remark beyond ASCII, a client's key."""
    fails = model(["sh", "-c", "exit 3"])
    fails["profiles"][0]["restart"] = {"max": 1, "window": "10m", "backoff": "1s"}
    folder = tmp_path_factory.mktemp("terminals")
    loud = r"""printf '\033]0;owned\007\033[31mred\033[0m\n'; exec "$$0" "$$@" """
    wide = model(["sh", "-c", loud, *fake("--alias", LONG)], gpus=1, gpu_memory="80GiB")
    one = Fleet(folder, write_catalog(folder / "catalog.yaml", {LONG: wide, "fails": fails}))
    (folder / "gpus.json").write_text(json.dumps(GPUS))
    one.more["agent"] = ["--gpus", str(folder / "gpus.json")]
    try:
        one.start("control", "agent")
        one.ready(LONG)
        states = ("failed",)
        wait_for(
            lambda: any(m["state"] in states for m in (one.status() or {"models": []})["models"]), "a give-up"
        )  # fmt: skip
        assert one.llmgw("pause", "--why", REMARK).returncode == 0
        assert one.llmgw("key", "add", "open-webui", "--model", LONG).returncode == 0
        yield one
    finally:
        one.close()


def env_of(fleet: Fleet, **more: str) -> dict[str, str]:
    env = {k: v for k, v in fleet.env.items() if k not in {"NO_COLOR", "COLUMNS", "LINES"}}
    return env | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | more


def piped(fleet: Fleet, *words: str, **env: str) -> Said:
    command = [sys.executable, "-m", "llmgw", *words]
    done = subprocess.run(
        command, env=env_of(fleet, **env), capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False
    )  # fmt: skip
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def shell(fleet: Fleet, script: str, **env: str) -> Said:
    """`$LLMGW` is the program."""
    program = f"{sys.executable} -m llmgw"
    done = subprocess.run(
        ["bash", "-c", script], env=env_of(fleet, LLMGW=program, **env), capture_output=True,
        stdin=subprocess.DEVNULL, timeout=60, check=False,
    )  # fmt: skip
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


class Terminal:
    """A verb whose stdout is a terminal that wide; `text` is what was on it so far."""

    def __init__(self, fleet: Fleet, width: int, *words: str, **env: str) -> None:
        self.text = ""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", *words], env=env_of(fleet, **env), stdout=theirs,
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        os.close(theirs)

    def read(self, timeout_s: float = 60.0) -> bool:
        """Whether there was more."""
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return False
        try:
            more = os.read(self._ours, 1 << 16)
        except OSError as e:
            if e.errno != errno.EIO:  # the other end has gone (pty(7))
                raise
            return False
        self.text += more.decode().replace("\r\n", "\n")
        return bool(more)

    def end(self) -> Said:
        while self.read():
            pass
        _, err = self.process.communicate(timeout=60)
        os.close(self._ours)
        return Said(self.process.returncode, self.text, err.decode())


def on_terminal(fleet: Fleet, width: int, *words: str, **env: str) -> Said:
    return Terminal(fleet, width, *words, **env).end()


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_through_a_pipe_all_of_it_and_plain(fleet: Fleet, words: tuple[str, ...]) -> None:
    """And in ASCII, but for what others said; on a narrow terminal the same, with colour and nothing else."""
    said = piped(fleet, *words, COLUMNS="40")
    assert "Traceback" not in said.err
    assert said.out
    assert "\x1b" not in said.out
    assert not BOXES.search(said.out)
    assert said.out.replace(REMARK, "").isascii()
    shown = on_terminal(fleet, 40, *words)
    assert shown.code == said.code
    bare = COLOUR.sub("", shown.out)
    assert "\x1b" not in bare
    assert not BOXES.search(bare)
    if words[:1] in {("status",), ("catalog",)} and LONG in said.out:
        assert all(part in bare for part in LONG.split("-"))


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("words", [("status", "-o", "wide"), ("adopt", "--dry-run")], ids=" ".join)
def test_a_table_is_as_wide_as_the_terminal(
    fleet: Fleet, width: int, words: tuple[str, ...]
) -> None:
    """Lines of prose are the terminal's to wrap, so that what is to be copied stays in one piece."""
    said = on_terminal(fleet, width, *words, NO_COLOR="1")
    assert "\x1b" not in said.out
    prose = (
        "warning: ",
        "paused ",
        "stop pending: ",
        "then ",
        "2 adopted",
        "1 adopted",
        "roll of ",
    )
    table = [line for line in said.out.splitlines() if not line.startswith(prose)]
    assert max(map(len, table)) <= width, said.out
    assert all(part in said.out for part in LONG.split("-"))


@pytest.mark.parametrize(
    ("flag", "env", "terminal", "coloured"),
    [
        ("auto", {}, True, True),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),  # no-color.org: an empty one is none
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1"}, True, True),
        ("never", {}, True, False),
        ("always", {}, False, True),
        ("auto", {}, False, False),
    ],
)
def test_who_gets_colour(
    fleet: Fleet, flag: str, env: dict[str, str], terminal: bool, coloured: bool
) -> None:
    words = ("status", "--color", flag)
    said = on_terminal(fleet, 100, *words, **env) if terminal else piped(fleet, *words, **env)
    assert bool(COLOUR.search(said.out)) is coloured
    assert "\x1b" not in COLOUR.sub("", said.out)
    bare = COLOUR.sub("", said.out)
    assert "ready" in bare, "words carry the meaning"
    assert "warning: model fails is failed" in bare


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_ALL": "POSIX"},
    ],
    ids=["ascii", "C, UTF-8 off", "POSIX"],
)
@pytest.mark.parametrize(
    "words", [("status",), ("events",), ("status", "-o", "json")], ids=" ".join
)
def test_what_cannot_be_spelled_is_spelled_out(
    fleet: Fleet, words: tuple[str, ...], env: dict[str, str]
) -> None:
    said = piped(fleet, *words, **env)
    assert (said.code, said.err) == (0, "")
    assert "gr\\xf6\\xdfere" in said.out or REMARK in said.out or "gr\\u00f6" in said.out


@pytest.mark.parametrize("verb", ["status", "adopt --dry-run", "events", "catalog show", "--help"])
def test_a_reader_that_has_enough_is_no_error(fleet: Fleet, verb: str) -> None:
    """`| head -1`, and one that was never there: 141 as if by SIGPIPE, or all was written before."""
    said = shell(fleet, f"$LLMGW {verb} | head -1; exit ${{PIPESTATUS[0]}}")
    assert said.code in {0, 1, 141}
    assert (len(said.out.splitlines()), said.err) == (1, "")
    said = shell(fleet, f"{{ $LLMGW {verb}; echo $? >&2; }} | exec true")
    assert said.err in {"141\n", "0\n", "1\n"}


@pytest.mark.parametrize("verb", ["status", "adopt --dry-run", "wake fails --dry-run", "version"])
def test_streams_that_are_closed_or_full(fleet: Fleet, verb: str) -> None:
    right = shell(fleet, f"$LLMGW {verb} >/dev/null")
    closed = shell(fleet, f"$LLMGW {verb} >&-")
    assert (closed.code, closed.out, closed.err) == (right.code, "", right.err)
    mute = shell(fleet, f"$LLMGW {verb} --nonsense 2>&-")
    assert (mute.code, mute.out) == (2, "")
    full = shell(fleet, f"$LLMGW {verb} >/dev/full")
    assert full.code == 1
    assert full.err.endswith("llmgw: cannot write the answer: no space left on device\n")


def test_a_question_without_a_terminal_is_refused_also_with_stdin_closed(fleet: Fleet) -> None:
    for script in (
        f"$LLMGW stop {LONG}",
        f"$LLMGW stop {LONG} <&-",
        f"echo y | $LLMGW stop {LONG}",
    ):
        said = shell(fleet, script)
        assert (said.code, said.out) == (2, "")
        assert "not asked, because stdin is not a terminal\nhint: add --yes" in said.err


def test_a_watch_redraws_on_a_terminal(fleet: Fleet) -> None:
    watch = Terminal(fleet, 100, "status", "--watch")
    end = time.monotonic() + 60
    frame = "\x1b[H\x1b[JNODE"
    while COLOUR.sub("", watch.text).count(frame) < 2 and time.monotonic() < end:
        watch.read(1.0)
    watch.process.send_signal(signal.SIGINT)
    said = watch.end()
    assert said.code == 130
    assert COLOUR.sub("", said.out).count(frame) >= 2
    assert "\x1b" not in COLOUR.sub("", said.out).replace("\x1b[H\x1b[J", "")


def follow(fleet: Fleet, file: Path, *words: str) -> subprocess.Popen[bytes]:
    with file.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "llmgw", *words], env=env_of(fleet), stdout=out
        )


def test_a_watch_appends_what_changed_to_a_pipe(fleet: Fleet, tmp_path: Path) -> None:
    """All of it once; then the rows in which more than an age differs. As JSON a line each time."""
    rows, lines = tmp_path / "rows", tmp_path / "lines"
    watches = [
        follow(fleet, rows, "status", "-w"),
        follow(fleet, lines, "status", LONG, "-w", "-o", "json"),
    ]
    try:
        wait_for(lambda: len(lines.read_bytes().splitlines()) > 1, "a second line")
        wait_for(lambda: LONG in rows.read_text(), "the first table")
        first = rows.read_text()
        assert fleet.llmgw("drain", f"{fleet.node}/1").returncode == 0
        wait_for(lambda: rows.read_text() != first, "a row that changed")
        wait_for(lambda: "is drained" in rows.read_text(), "the note")
    finally:
        fleet.llmgw("undrain", f"{fleet.node}/1")
        for watch in watches:
            watch.send_signal(signal.SIGINT)
        codes = [watch.wait(60) for watch in watches]
    assert codes == [130, 130]
    added = rows.read_text().removeprefix(first)
    assert "(drained)" in added
    assert "\x1b" not in added
    assert "NODE  STATE" not in added, "no second table"
    for line in lines.read_text().splitlines():
        shown = json.loads(line)
        assert [m["name"] for m in shown["models"]] == [LONG]
