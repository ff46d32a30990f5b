"""One line an event: readable as it scrolls by, parseable as key=value, and never the end of the daemon."""

import io
import logging
import re
import sys

import pytest
import structlog
from typing_extensions import override

from llmgw.cli import log


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    log.configure()
    return out


@pytest.fixture(autouse=True)
def _as_before() -> object:
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers.clear()


def test_a_line_has_time_level_sentence_and_facts(stderr: io.StringIO) -> None:
    structlog.get_logger().info(
        "box1 is ready", node="box1", why="2 of 3", gpus=["a", "b"], no=None
    )
    line = stderr.getvalue()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ info    box1 is ready"
        r'  node=box1 why="2 of 3" gpus=a,b\n',
        line,
    )


def test_libraries_are_heard_from_warnings_on(stderr: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").info("not this")
    logging.getLogger("uvicorn.error").warning("port %d", 80)
    assert "not this" not in stderr.getvalue()
    assert stderr.getvalue().endswith("warning port 80  logger=uvicorn.error\n")


def test_a_traceback_comes_after_its_line(stderr: io.StringIO) -> None:
    try:
        int("odd")
    except ValueError:
        structlog.get_logger().exception("a pass failed")
    first, *rest = stderr.getvalue().splitlines()
    assert first.endswith("error   a pass failed")
    assert rest[0].startswith("Traceback")
    assert rest[-1].startswith("ValueError: ")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("plain-1.5/x", "plain-1.5/x"),
        ("", '""'),
        ('a "b"', r'"a \"b\""'),
        (True, "true"),
        ([], "-"),
    ],
)
def test_values(value: object, said: str) -> None:
    assert log.quoted(value) == said


def test_a_terminal_gets_the_time_of_day() -> None:
    assert re.match(
        r"\d\d:\d\d:\d\d warning x$", log.line({"event": "x", "level": "warning"}, terminal=True)
    )


class Gone(io.StringIO):
    @override
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_is_gone_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    log.configure()
    structlog.get_logger().info("into the void")
