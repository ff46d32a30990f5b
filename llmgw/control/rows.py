"""The tables of the inventory file, and what of control's picture is a row of which.

Answers for: the format and its steps from version to version, and that a record which makes no sense costs itself only
(F20). It may not know where the file is, nor open it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from llmgw.control import keys, picture
from llmgw.control.picture import Change, Moment
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types.messages import EPOCH_END

#: `events` keeps about this many rows.
EVENTS_KEPT = 10_000


class Db(Protocol):
    """What is used of a connection: `store` alone knows SQLite."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any: ...


def _first_tables(db: Db) -> None:
    for table in (
        "meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "nodes (name TEXT PRIMARY KEY, unreachable INTEGER NOT NULL, heard_at TEXT NOT NULL, report TEXT NOT NULL)",
        "draining (incarnation TEXT PRIMARY KEY, since TEXT NOT NULL, drain TEXT NOT NULL)",
        """failures (model TEXT, incarnation TEXT, at TEXT NOT NULL, failure TEXT NOT NULL,
        PRIMARY KEY (model, incarnation))""",
        "catalog (file TEXT PRIMARY KEY, source TEXT NOT NULL)",
        "events (id INTEGER PRIMARY KEY, at TEXT NOT NULL, event TEXT NOT NULL)",
    ):
        db.execute(f"CREATE TABLE {table}")


def _keys(db: Db) -> None:
    db.execute("CREATE TABLE keys (name TEXT PRIMARY KEY, key TEXT NOT NULL)")


def _learned(db: Db) -> None:
    db.execute("CREATE TABLE learned (fingerprint TEXT PRIMARY KEY, gpu_bytes TEXT NOT NULL)")


#: Step n makes version n of the file out of version n - 1 (`PRAGMA user_version`). Never edited, only added to.
MIGRATIONS: tuple[Callable[[Db], None], ...] = (_first_tables, _keys, _learned)


def version(db: Db) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: Db) -> None:
    old = version(db)
    if old == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    for step in MIGRATIONS[old:]:
        step(db)
    db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
    db.execute("COMMIT")


def tables(db: Db) -> set[tuple[str, str]]:
    """Name and wording of every table."""
    return set(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))


# ---------------------------------------------------------------- in


def save(db: Db, change: Change, now: Moment) -> None:
    db.executemany("DELETE FROM nodes WHERE name = ?", [(name,) for name in change.gone])
    db.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", picture.node_rows(change))
    if change.draining is not None:
        draining = picture.draining_rows(change.draining, now)
        db.execute("DELETE FROM draining")
        db.executemany("INSERT INTO draining VALUES (?, ?, ?)", draining)
    if change.failures is not None:
        failed = picture.failure_rows(change.failures, now)
        db.execute("DELETE FROM failures")
        db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", failed)
    if change.sources is not None:
        db.execute("DELETE FROM catalog")
        db.executemany("INSERT INTO catalog VALUES (?, ?)", change.sources.items())
    if change.keys is not None:
        db.execute("DELETE FROM keys")
        db.executemany("INSERT INTO keys VALUES (?, ?)", keys.rows_of(change.keys))
    _save_learned(db, change.learned)
    _save_meta(db, change, now)
    db.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", picture.event_rows(change))
    if change.events:
        db.execute("DELETE FROM events WHERE id <= ?", (change.events[-1]["id"] - EVENTS_KEPT,))


def _save_meta(db: Db, change: Change, now: Moment) -> None:
    if change.paused is not None:
        put(db, "paused", change.paused)
    if change.confirmed is not None:
        put(db, "confirmed", picture.confirmed_text(change.confirmed))
    if change.cordoned is not None:
        put(db, "cordoned", picture.cordoned_text(change.cordoned))
    if change.woken_s is not None:
        put(db, "woken", picture.woken_text(change.woken_s, now))
    if change.gateways is not None:
        put(db, "gateways", change.gateways)


def _save_learned(db: Db, learned: dict[str, int] | None) -> None:
    if learned is not None:
        db.execute("DELETE FROM learned")
        db.executemany("INSERT INTO learned VALUES (?, ?)", picture.learned_rows(learned))


def put(db: Db, key: str, value: object) -> None:
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, str(value)))


# ---------------------------------------------------------------- out


def epoch(db: Db) -> int:
    """0 as of a lost file where no control can have written that: agents tell what they obeyed (F16)."""
    try:
        found = int(_meta(db, "epoch") or 0)
    except ValueError:
        return 0
    return found if 0 <= found < EPOCH_END else 0


def memory(db: Db, now: Moment, warn: Callable[[str], None]) -> Memory:
    if not version(db):
        return Memory()
    nodes = _texts(db, "nodes", "name", "unreachable", "report")
    failures = _texts(db, "failures", "model", "at", "failure", by="at")
    draining = _texts(db, "draining", "incarnation", "since", "drain")
    return Memory(
        nodes=picture.nodes_of([(n, silent != "0", text) for n, silent, text in nodes], warn),
        epoch=epoch(db),
        failures=picture.failures_of(failures, now, warn),
        draining=picture.draining_of(draining, now, warn),
        paused=_meta(db, "paused"),
        confirmed=picture.confirmed_of(_meta(db, "confirmed"), warn),
        cordoned=picture.cordoned_of(_meta(db, "cordoned"), warn),
        woken_s=picture.woken_of(_meta(db, "woken"), now, warn),
        learned=picture.learned_of(_learned_rows(db)),
        gateways=picture.gateways_of(_meta(db, "gateways"), warn),
    )


def _learned_rows(db: Db) -> list[Any]:
    return _texts(db, "learned", "fingerprint", "gpu_bytes") if version(db) > 2 else []  # noqa: PLR2004 - since then


def api_keys(db: Db, warn: Callable[[str], None]) -> keys.Keys:
    return keys.keys_of(_texts(db, "keys", "name", "key"), warn) if version(db) > 1 else {}


def sources(db: Db) -> dict[str, str]:
    return dict(_texts(db, "catalog", "file", "source")) if version(db) else {}


def events(db: Db, last: int) -> list[dict[str, Any]]:
    """The newest `last`, oldest first."""
    newest = _texts(db, "events", "id", "event", by=f"id DESC LIMIT {last:d}")
    return [{"id": int(i), **_plain(text)} for i, text in reversed(newest)]


def _meta(db: Db, key: str) -> str:
    row = db.execute("SELECT CAST(value AS TEXT) FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else ""


def _texts(db: Db, table: str, *columns: str, by: str = "1") -> list[Any]:
    """As text whatever is there, so that a damaged value cannot be more than a text without sense."""
    values = ", ".join(f"COALESCE(CAST({c} AS TEXT), '')" for c in columns)
    found: list[Any] = db.execute(f"SELECT {values} FROM {table} ORDER BY {by}").fetchall()  # noqa: S608
    return found


def _plain(text: str) -> dict[str, Any]:
    """One row; nobody but people need it, so one that makes no sense is an empty one."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {}
