"""The inventory: one SQLite file with what the fleet cannot tell (design.md 1), and the last picture; and wall time.

The one file is everything: rollback journal, so a copy, a backup or a read-only look needs no second file. Control
takes the flock on `FILE.lock` first (`lease`), so there is one writer. Losing the file never stops an engine: what
cannot be read is moved aside, what cannot be written is said in `status`. May not decide, nor wait for long.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from shutil import copyfile
from typing import Any

import msgspec

from llmgw.control import picture
from llmgw.control.lease import Flock
from llmgw.control.picture import Change, Moment, Picture
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types.messages import NodeReport
from llmgw.errors import EXIT_UNKNOWN, LlmgwError

#: SQLite waits this long for somebody else's lock (F13); adoption and dispatch stand still for no longer than that.
BUSY_S = 0.25
#: `events` keeps about this many rows.
EVENTS_KEPT = 10_000


class StoreError(LlmgwError):
    """The inventory cannot be read or written now; `busy`: somebody has it locked; `corrupt`: not ever again."""

    code = "inventory"
    status = 503

    def __init__(
        self, message: str, hint: str = "", *, busy: bool = False, corrupt: bool = False
    ) -> None:
        super().__init__(message, hint)
        self.busy = busy
        self.corrupt = corrupt


def moment(mono_s: float) -> Moment:
    return Moment(mono_s, time.time())


def _first_tables(db: sqlite3.Connection) -> None:
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


#: Step n makes version n of the file out of version n - 1 (`PRAGMA user_version`). Never edited, only added to.
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_first_tables,)


class Store:
    def __init__(self, path: Path, *, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn = warn
        self._db: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open, or create, or move a broken one aside and create (F14). StoreError: not now."""
        if self._db is not None:
            return
        for _ in range(2):
            try:
                if not self.path.exists():
                    _create(self.path)
                self._db = _connected(self.path)
            except StoreError as e:
                if not e.corrupt:
                    raise
                aside = _aside(self.path)
                self._warn(f"{e.message}; moved to {aside}, going on with an empty history")
            else:
                return

    @property
    def closed(self) -> bool:
        return self._db is None

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _commit(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """FULL for what others act upon (epoch, intents); NORMAL for what agents will say again."""
        with _worded(self.path):
            if self._db is None:
                msg = f"{self.path} is not open"
                raise StoreError(msg)
            db = self._db
            db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def epoch(self) -> int:
        with _worded(self.path):
            return _epoch(self._opened())

    def write_epoch(self, epoch: int, leader_uuid: str) -> None:
        with self._commit(durable=True) as db:
            _set(db, "epoch", epoch)
            _set(db, "leader_uuid", leader_uuid)

    def memory(self, now: Moment) -> Memory:
        with _worded(self.path):
            return _memory(self._opened(), now, self._warn)

    def sources(self) -> dict[str, str]:
        """The last good catalog; {} when there never was one."""
        with _worded(self.path):
            return dict(self._opened().execute("SELECT file, source FROM catalog"))

    def gateway(self) -> dict[str, Any]:
        with _worded(self.path):
            row = self._opened().execute("SELECT value FROM meta WHERE key = 'gateway'").fetchone()
        return _plain(row[0]) if row else {}

    def events(self, last: int) -> list[dict[str, Any]]:
        """The newest `last` events, oldest first, each with its `id`."""
        with _worded(self.path):
            rows = self._opened().execute(
                "SELECT id, event FROM events ORDER BY id DESC LIMIT ?", (last,)
            )
            return [{"id": i, **_plain(e)} for i, e in reversed(list(rows))]

    def save(self, change: Change, now: Moment) -> None:
        with self._commit(durable=change.durable) as db:
            _save(db, change, now)

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            msg = f"{self.path} is not open"
            raise StoreError(msg)
        return self._db


def read_memory(
    path: Path, *, now: float = 0.0, warn: Callable[[str], None] = lambda _: None
) -> Memory:
    """What a control that starts on this file would remember, by the reader's clock. Changes nothing on disk (A53).

    A file that is there and cannot be read is no empty one: who asks cannot tell what control would do (exit 3).
    """
    at = moment(now)
    try:
        if not _there(path):
            return Memory()
        try:
            with closing(_read_only(path)) as db:
                return _memory(db, at, warn)
        except StoreError as e:
            if e.corrupt:
                raise
        # A journal that a killed writer left, or a writer that holds on: SQLite would write, or wait. A copy need not.
        with _copied(path) as copy, closing(_connected(copy, migrate=False)) as db:
            return _memory(db, at, warn)
    except StoreError as e:
        if not e.corrupt:
            e.exit_code = EXIT_UNKNOWN
            raise
        warn(f"{e.message}; a control that starts now would go on with an empty history")
        return Memory()


def _there(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as e:
        msg = f"{path} cannot be read: {e.strerror}"
        raise StoreError(msg, "ask as the user that control runs as") from e
    return True


def apply_reports(path: Path, reports: Iterable[NodeReport]) -> None:
    """Offline `adopt`: the nodes that reported are the picture now. Facts only: nothing planned is done or recorded."""
    with Flock(path):
        store = Store(path, warn=lambda _: None)
        store.open()
        try:
            now = moment(0.0)
            heard = {r.node: Picture(r, unreachable=False, heard_at=now.iso(0.0)) for r in reports}
            store.save(Change(nodes=heard, durable=True), now)
        finally:
            store.close()


# ---------------------------------------------------------------- the file


def _create(path: Path) -> None:
    """Under another name and moved into place: a kill in between leaves nothing half made."""
    made = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            _connected(made).close()
            made.rename(path)
        finally:
            made.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as e:
        msg = f"cannot create the inventory {path}: {e.strerror}"
        raise StoreError(msg, "check the folder's permissions and free space") from e


def _connected(path: Path, *, migrate: bool = True) -> sqlite3.Connection:
    with _worded(path):
        db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=DELETE")
            db.execute("PRAGMA temp_store=MEMORY")
            _check(db, path)
            if migrate:
                _migrate(db)
        except BaseException:
            db.close()
            raise
        return db


def _read_only(path: Path) -> sqlite3.Connection:
    with _worded(path):
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
        try:
            _check(db, path)
        except BaseException:
            db.close()
            raise
        return db


def _check(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        msg = f"{path} was written by a newer llmgw (format {version}, this one knows {len(MIGRATIONS)})"
        raise StoreError(msg, "use that version again, or start with another --inventory FILE")
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        msg = f"{path} is broken: {found}"
        raise StoreError(msg, corrupt=True)


def _migrate(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    for step in MIGRATIONS[version:]:
        step(db)
    db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
    db.execute("COMMIT")


def _aside(path: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    try:
        path.rename(aside)
        journal = path.with_name(f"{path.name}-journal")
        if journal.exists():
            journal.rename(aside.with_name(f"{aside.name}-journal"))
    except OSError as e:
        msg = f"{path} is broken and cannot be moved aside: {e.strerror}"
        raise StoreError(msg, "move it away by hand") from e
    return aside


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """The file and its journal, in the order that keeps them consistent: a page is in the journal before it changes."""
    with tempfile.TemporaryDirectory(prefix="llmgw-") as folder:
        copy = Path(folder) / "inventory.db"
        journal = path.with_name(f"{path.name}-journal")
        try:
            for _ in range(5):
                before = path.stat()
                copyfile(path, copy)
                if journal.exists():
                    copyfile(journal, copy.with_name("inventory.db-journal"))
                after = path.stat()
                if (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino):
                    break
        except OSError as e:
            msg = f"{path} cannot be read: {e.strerror}"
            raise StoreError(msg, "ask as the user that control runs as") from e
        yield copy


@contextmanager
def _worded(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as e:
        code = getattr(e, "sqlite_errorcode", 0) & 0xFF
        corrupt = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if busy:
            msg, hint = f"{path} is locked by another program", "end it; control tries again"
        else:
            msg, hint = f"{path}: {e}", "check the disk and the file's permissions"
        raise StoreError(msg, hint, busy=busy, corrupt=corrupt) from e


# ---------------------------------------------------------------- rows


def _plain(text: str) -> dict[str, Any]:
    """One row; nobody but people need it, so one that makes no sense is an empty one."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {}


def _epoch(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    try:
        return int(row[0]) if row else 0
    except ValueError:
        return 0  # as of a lost file: agents tell what they obeyed (F16)


def _set(db: sqlite3.Connection, key: str, value: object) -> None:
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, str(value)))


def _save(db: sqlite3.Connection, change: Change, now: Moment) -> None:
    db.executemany("DELETE FROM nodes WHERE name = ?", [(name,) for name in change.gone])
    db.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", picture.node_rows(change))
    if change.draining is not None:
        rows = picture.draining_rows(change.draining, now)
        db.execute("DELETE FROM draining")
        db.executemany("INSERT INTO draining VALUES (?, ?, ?)", rows)
    if change.failures is not None:
        failed = picture.failure_rows(change.failures, now)
        db.execute("DELETE FROM failures")
        db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)", failed)
    if change.sources is not None:
        db.execute("DELETE FROM catalog")
        db.executemany("INSERT INTO catalog VALUES (?, ?)", change.sources.items())
    if change.gateway is not None:
        _set(db, "gateway", msgspec.json.encode(change.gateway).decode())
    db.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", picture.event_rows(change))
    if change.events:
        db.execute("DELETE FROM events WHERE id <= ?", (change.events[-1]["id"] - EVENTS_KEPT,))


def _memory(db: sqlite3.Connection, now: Moment, warn: Callable[[str], None]) -> Memory:
    with _worded(Path("the inventory")):
        if not db.execute("PRAGMA user_version").fetchone()[0]:
            return Memory()
        nodes = db.execute("SELECT name, unreachable, report FROM nodes ORDER BY name").fetchall()
        failures = db.execute("SELECT model, at, failure FROM failures ORDER BY at").fetchall()
        draining = db.execute("SELECT incarnation, since, drain FROM draining").fetchall()
        return Memory(
            nodes=picture.nodes_of(nodes, warn),
            epoch=_epoch(db),
            failures=picture.failures_of(failures, now, warn),
            draining=picture.draining_of(draining, now, warn),
        )
