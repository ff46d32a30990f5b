"""What the tests of recordings share: read one as its receiver does, write it again, and find what is lost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmgw.agent.journal import Journal
from llmgw.core.types.messages import (
    Commands,
    Events,
    EventsReply,
    NodeReport,
    Registered,
    Token,
)
from llmgw.core.types.routes import Demand, Heard, RouteTable
from llmgw.wire import decode, encode
from tests.wire.record import FOLDER

VERSIONS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
TYPES: dict[str, Any] = {
    "register": NodeReport,
    "inventory": NodeReport,
    "registered": Registered,
    "commands": Commands,
    "events": Events,
    "events-reply": EventsReply,
    "routes": RouteTable,
    "demand": Demand,
    "demand-reply": Heard,
    "token": Token,
}
#: Objects whose keys are names, not fields.
_TABLES = "env ports labels fabrics limits models breaker breaker_why in_flight waiting waited last_byte answered"
TABLES = frozenset(_TABLES.split())
MESSAGES = [(v, name) for v in VERSIONS for name in (*TYPES, "record")]
KEY = ("alpha-7k2m/0", "inc-alpha")


def recorded(version: str, name: str) -> Any:
    return json.loads((FOLDER / version / f"{name}.json").read_bytes())


def read(name: str, plain: Any) -> Any:
    """As whoever gets it reads it; a journal's record is read by a journal."""
    data = json.dumps(plain).encode()
    if name != "record":
        return decode(data, TYPES[name])
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        (journal.folder / "alpha-7k2m@0@inc-alpha.json").write_bytes(data)
        (record,) = journal.load().records
        return record


def written(name: str, value: Any) -> Any:
    if name != "record":
        return json.loads(encode(value))
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        journal.write(value)
        (path,) = journal.folder.glob("*.json")
        return json.loads(path.read_bytes())


def lost(old: Any, new: Any, where: str = "") -> list[str]:
    """What of `old` is not the same in `new`; more in `new` is no loss."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [p for k, v in old.items() for p in lost(v, new.get(k, ...), f"{where}.{k}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [p for n, (o, w) in pairs for p in lost(o, w, f"{where}.{n}")]
    return [] if old == new else [where]


def at(plain: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        plain = plain[key]
    return plain


def places(plain: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every field of every object in it."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield (*here, key)
            yield from places(value, (*here, key))
    if isinstance(plain, list):
        for n, value in enumerate(plain):
            yield from places(value, (*here, n))


def path(place: tuple[Any, ...]) -> str:
    """The way without the numbers in lists and the names in tables."""
    steps = zip(place, ("", *place), strict=False)
    return ".".join(k for k, before in steps if isinstance(k, str) and before not in TABLES)
