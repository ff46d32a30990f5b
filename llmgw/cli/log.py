"""What a daemon says on stderr: one line an event, readable as it scrolls by and parseable as key=value.

Answers for: one format for our own lines and for those of libraries. A lost terminal must not stop the daemon, so a
write that fails is dropped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from typing_extensions import override

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@+,%#")
#: How a terminal's line starts: the day is known; a file or a journal gets the whole UTC time.
TERMINAL_TIME, WHOLE_TIME = "%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"


class Careful:
    """A stream whose reader may go away: a terminal that was closed, a pipe whose end died."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure(*, debug: bool = False) -> None:
    """Called once by a daemon's verb, before its parts are imported."""
    level = logging.DEBUG if debug else logging.INFO
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            lambda _logger, _name, event: line(event, terminal=terminal),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write for a whole line: the workers of a gateway share the stream.
        logger_factory=structlog.WriteLoggerFactory(Careful(sys.stderr)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    handler = _Libraries()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def line(event: MutableMapping[str, Any], *, terminal: bool) -> str:
    level = event.pop("level", "info")
    said = str(event.pop("event", ""))
    trace = event.pop("exception", None)
    stamp = time.strftime(TERMINAL_TIME) if terminal else time.strftime(WHOLE_TIME, time.gmtime())
    facts = "".join(f" {key}={quoted(value)}" for key, value in event.items() if value is not None)
    text = f"{stamp} {level:<7} {said}{' ' if facts else ''}{facts}"
    return f"{text}\n{trace}" if trace else text


def quoted(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(quoted(item) for item in value) or "-"
    text = json.dumps(value) if isinstance(value, dict | bool) else str(value)
    return text if text and PLAIN.issuperset(text) else json.dumps(text, ensure_ascii=False)


class _Libraries(logging.Handler):
    """Warnings of libraries, in the same form and through the same door."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        facts: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            facts["exc_info"] = record.exc_info
        log.log(record.levelno, record.getMessage(), **facts)
