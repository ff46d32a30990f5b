"""Loads structlog and httpx without what they load for faces of their own: rich, click, pygments; a fifth of a start.

structlog colours tracebacks with rich (structlog/dev.py), httpx has a command line (httpx/_main.py); both do without
where these are not installed, and a daemon shows neither. May not change what the libraries do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

#: What is loaded, and its face.
FACES = {"structlog": "rich", "httpx": "httpx._main"}


def load(*names: str) -> None:
    """These, else both, before anything else imports them; later it does nothing."""
    for name in names or FACES:
        with _not_there(FACES[name]):
            import_module(name)


@contextmanager
def _not_there(name: str) -> Iterator[None]:
    """Whoever imports it meanwhile is told that there is none; afterwards it is as it was."""
    modules: dict[str, Any] = sys.modules
    if name in modules:
        yield
        return
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]
