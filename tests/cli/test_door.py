"""One door out: exit codes, at most two lines on stderr, no traceback and no secret."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from llmgw import __version__
from llmgw.cli import VERBS, door
from llmgw.errors import LlmgwError, UnauthorisedError, UnreachableError, UsageError
from tests.cli.say import llmgw

MODULE = [sys.executable, "-m", "llmgw"]


def fail(error: BaseException) -> object:
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LlmgwError("the thing: 3 of 4", "try 4"), 1),
        (UsageError("the thing: 3 of 4", "try 4"), 2),
        (UnreachableError("the thing: 3 of 4", "try 4"), 3),
        (UnauthorisedError("the thing: 3 of 4", "try 4"), 4),
    ],
)
def test_an_expected_error_is_two_lines(
    error: LlmgwError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert door.through(lambda: fail(error)) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "llmgw: the thing: 3 of 4\nhint: try 4\n")


def test_a_bug_is_one_line_and_a_report_without_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_TOKEN", "s3cret-token")
    error = RuntimeError("broke on s3cret-token and Bearer abcdef")
    assert door.through(lambda: fail(error)) == 70
    said = capsys.readouterr().err
    found = re.fullmatch(
        r"llmgw: a bug: RuntimeError: broke on \*\*\* and Bearer \*\*\*; report in (\S+)\n", said
    )
    assert found, said
    report = Path(found[1])
    text = report.read_text()
    report.unlink()
    assert "Traceback" in text
    assert f"llmgw {__version__}, Python" in text
    assert "s3cret" not in text
    assert "abcdef" not in text


def test_the_cause_is_named_not_the_group_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("the cause")])
    assert door.through(lambda: fail(group)) == 70
    said = capsys.readouterr().err
    assert said.startswith("llmgw: a bug: ValueError: the cause; report in ")
    report = Path(said.split("report in ")[1].strip())
    assert "the cause" in report.read_text()
    report.unlink()


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert door.through(lambda: fail(RuntimeError("x")), debug=True) == 70
    said = capsys.readouterr().err
    assert "Traceback" in said
    Path(said.split("report in ")[1].strip()).unlink()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_ctrl_c_is_130_and_quiet(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert door.through(lambda: fail(error)) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["adpot"], "llmgw: no such command 'adpot'\nhint: did you mean 'adopt'?"),
        (["standby"], "llmgw: no such command 'standby'\nhint: `llmgw --help` shows what there is"),
        (["adopt", "--dry"], "llmgw: no such option: --dry\nhint: did you mean --dry-run?"),
        (
            ["control", "--standbye"],
            "llmgw: no such option: --standbye\nhint: did you mean --standby?",
        ),
        (
            ["status", "-o", "yaml"],
            "llmgw: invalid value for '-o' / '--output': 'yaml' is not one of",
        ),
        (["status", "a", "b"], "llmgw: got unexpected extra argument"),
        (["clear"], "llmgw: missing argument 'REPLICA|MODEL'"),
    ],
)
def test_wrong_words_are_2_with_the_nearest_right_one(words: list[str], said: str) -> None:
    result = llmgw(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(said), result.err
    assert len(result.err.splitlines()) == 2


def test_no_words_at_all_show_the_help_and_are_2() -> None:
    result = llmgw()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: llmgw ")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_an_answer(flag: str) -> None:
    result = llmgw("adopt", flag)
    assert (result.code, result.err) == (0, "")
    assert "--dry-run" in result.out


def commands(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The verbs as a shell types them: those of a group instead of the group."""
    out = llmgw(*words, "--help").out.partition("Commands:\n")[2]
    return [(*words, line.split()[0]) for line in out.splitlines() if line.strip()]


def test_the_list_of_verbs_says_each_in_a_line_and_cuts_none() -> None:
    for group in ((), ("catalog",), ("key",), ("import",), ("token",)):
        said = llmgw(*group, "--help").out.partition("Commands:\n")[2]
        assert "..." not in said, said
        assert all(re.match(r"  \S", line) for line in said.splitlines()), said


def test_the_help_of_each_verb_teaches_by_example() -> None:
    """A line to copy: its own name, as it is typed."""
    for verb in commands(()):
        for words in commands(verb) or [verb]:
            said = llmgw(*words, "--help").out
            prose = " ".join(said.partition("\n")[2].partition("Options:")[0].split())
            assert f"llmgw {' '.join(words)}" in prose, said


@pytest.mark.parametrize("words", [["--version"], ["--debug", "--version"], ["version"]])
def test_the_version(words: list[str]) -> None:
    result = subprocess.run([*MODULE, *words], capture_output=True, text=True, check=True)
    assert result.stdout.startswith(f"llmgw {__version__}")


def test_global_options_may_stand_anywhere() -> None:
    assert llmgw("version", "--color", "never").code == 0
    assert llmgw("version", "--color=sometimes").code == 2
    assert llmgw("version", "--debug").code == 0


def test_a_reader_that_leaves_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [*MODULE, "catalog", "schema"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (door.EXIT_PIPE, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--version"], ["version"], ["catalog", "schema"], ["--help"]])
def test_an_answer_that_cannot_be_written_is_no_bug(words: list[str], unbuffered: str) -> None:
    """`> FILE` on a full disk; what is longer than a buffer fails elsewhere than what is short."""
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full is missing")
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*MODULE, *words], stdout=full, stderr=subprocess.PIPE, env=env, check=False
        )
    assert (result.returncode, result.stderr.decode()) == (
        1,
        "llmgw: cannot write the answer: no space left on device\n",
    )


def test_another_file_that_cannot_be_written_is_not_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert door.through(full) == 70
    Path(capsys.readouterr().err.split("report in ")[1].strip()).unlink()


def test_a_stdout_that_is_closed_is_no_bug() -> None:
    line = ["sh", "-c", 'exec "$@" >&-', "sh", *MODULE, "version"]
    result = subprocess.run(line, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("llmgw sta", ["status"]),
        ("llmgw ", list(VERBS)),
        ("llmgw adopt --al", ["--allow-partial"]),
        ("llmgw catalog s", ["schema", "show"]),
        ("llmgw status -o ", ["table", "wide", "json"]),
        ("llmgw --co", ["--color"]),
        ("llmgw nothing-like-it", []),
    ],
)
def test_a_shell_completes_verbs_options_and_values(line: str, said: list[str]) -> None:
    env = {
        **os.environ,
        "_LLMGW_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    result = subprocess.run(MODULE, env=env, capture_output=True, text=True, check=True)
    assert (sorted(result.stdout.split()), result.stderr) == (sorted(said), "")


def imported(*words: str) -> set[str]:
    """The modules that one call loads, as `-X importtime` lists them."""
    command = [sys.executable, "-X", "importtime", "-m", "llmgw", *words]
    env = {**os.environ, "LLMGW_CONTROL": "http://127.0.0.1:9", "LLMGW_AGENT": "http://127.0.0.1:9"}
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=env).stderr
    return {line.rpartition("|")[2].strip() for line in said.splitlines() if "|" in line}


@pytest.mark.parametrize(
    ("words", "never"),
    [
        (["--version"], {"typer", "json", "httpx", "msgspec", "llmgw.cli"}),
        (["status"], {"httpx", "rich", "msgspec", "yaml", "http.client", "llmgw.cli.daemons"}),
        (["version"], {"httpx", "rich", "msgspec", "yaml", "structlog"}),
        (["adopt", "--dry-run", "--report", "/nowhere"], {"httpx", "rich", "starlette", "uvicorn"}),
    ],
)
def test_quick_commands_load_little(words: list[str], never: set[str]) -> None:
    loaded = imported(*words)
    assert "llmgw" in loaded
    assert not loaded & never
