"""Which file that an engine is to load is not on this node, looked at when a start is ordered and before each attempt.

What cannot be told (a secret that is not set, a folder that may not be read) limits nothing. May not refuse:
`core.supervise.claims` does.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from llmgw.agent.placeholders import Filler, PlaceholderError
from llmgw.core.types.messages import Start
from llmgw.core.weights import named

#: `org/name` is a repository's name.
PATHS = ("/", "./", "../", "~")


def missing(start: Start, fill: Filler) -> str:
    """The first that is absent, without secrets; "" for none. In a container a command's paths are the image's own."""
    words = () if start.image else named(start.command, start.env)
    told = (word.replace("${weights}", start.weights) for word in words)
    for text, paths in ((start.weights, PATHS), *((word, ("/",)) for word in told)):
        with suppress(PlaceholderError):
            path = fill(text)
            if path.startswith(paths) and _absent(path):
                return fill.shown(text)
    return ""


def _absent(path: str) -> bool:
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no path has a NUL
        return True
    except OSError:
        return False
    return False
