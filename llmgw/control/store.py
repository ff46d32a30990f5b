"""The inventory: one SQLite file with what the fleet cannot tell (design.md 1), and the last picture; and wall time.

The one file is everything: rollback journal, so a copy, a backup or a read-only look needs no second file. Control
takes the flock on `FILE.lock` first (`lease`), so there is one writer. Losing the file never stops an engine: what
cannot be read is moved aside, what cannot be written is said in `status`. May not decide, nor wait for long.
"""

from __future__ import annotations

import glob
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from llmgw.control import files, rows
from llmgw.control.crash import crash
from llmgw.control.files import StoreError, moved_aside
from llmgw.control.keys import Keys
from llmgw.control.lease import Flock, noted
from llmgw.control.picture import Change, Moment, Picture
from llmgw.control.rows import EVENTS_KEPT, MIGRATIONS
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types.messages import NodeReport
from llmgw.errors import EXIT_UNKNOWN, LlmgwError

__all__ = [
    "BUSY_S",
    "EVENTS_KEPT",
    "MIGRATIONS",
    "Store",
    "StoreError",
    "apply_reports",
    "edit_keys",
    "moment",
    "read_keys",
    "read_memory",
    "read_sources",
]

T = TypeVar("T")
#: SQLite waits this long for somebody else's lock (F13); adoption and dispatch stand still for no longer than that.
BUSY_S = 0.25


def moment(mono_s: float) -> Moment:
    return Moment(mono_s, time.time())


class Store:
    """`opened`: how often; another number means another file, which may have nothing of what was in the one before."""

    def __init__(self, path: Path, *, warn: Callable[[str], None]) -> None:
        self.path = files.real(path)
        self.opened = 0
        self._warn = warn
        self._db: sqlite3.Connection | None = None
        self._left: files.Stamp | None = None

    def open(self) -> None:
        """Open what is there, or create it, or move a broken one aside and create (F14). StoreError: not now."""
        if self.as_left:
            return
        self.close()
        for _ in range(2):
            try:
                there = files.there(self.path)
                if aside := files.strange_journal(self.path):
                    self._warn(f"{self.path} had the journal of another file, moved to {aside}")
                if not there:
                    _create(self.path)
                self._db = _connected(self.path)
            except StoreError as e:
                if not e.corrupt:
                    raise
                aside = moved_aside(self.path)
                crash("after_set_aside")
                self._warn(f"{e.message}; moved to {aside}, going on with an empty history")
            else:
                self.opened += 1
                self._left = files.stamp(self.path)
                return

    @property
    def as_left(self) -> bool:
        """Open, and nobody has removed, replaced or written the file since this control did."""
        return self._db is not None and self._left == files.stamp(self.path)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        """The open file. One that fails other than by being busy is opened anew by who wants it next."""
        if self._db is None:
            msg = f"{self.path} is not open"
            raise StoreError(msg, "control tries again")
        try:
            with _worded(self.path):
                yield self._db
        except StoreError as e:
            if not e.busy:
                self.close()
            raise

    @contextmanager
    def _commit(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """FULL for what others act upon (epoch, intents); NORMAL for what agents will say again."""
        with self._used() as db:
            db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                crash("before_commit")
                db.execute("COMMIT")
                crash("after_commit")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            self._left = files.stamp(self.path)

    def epoch(self) -> int:
        self.open()
        with self._used() as db:
            return rows.epoch(db)

    def write_epoch(self, epoch: int, leader_uuid: str) -> None:
        with self._commit(durable=True) as db:
            rows.put(db, "epoch", epoch)
            rows.put(db, "leader_uuid", leader_uuid)

    def memory(self, now: Moment) -> Memory:
        with self._used() as db:
            return rows.memory(db, now, self._warn)

    def sources(self) -> dict[str, str]:
        """The last good catalog; {} when there never was one."""
        with self._used() as db:
            return rows.sources(db)

    def keys(self) -> Keys:
        """API keys of clients, by name."""
        with self._used() as db:
            return rows.api_keys(db, self._warn)

    def events(self, last: int) -> list[dict[str, Any]]:
        """The newest `last` events, oldest first, each with its `id`."""
        with self._used() as db:
            return rows.events(db, last)

    def save(self, change: Change, now: Moment, *, instead: bool = False) -> None:
        """`instead`: of all nodes that are in the file; it may be somebody's backup."""
        with self._commit(durable=change.durable) as db:
            if instead:
                db.execute("DELETE FROM nodes")
            rows.save(db, change, now)


def read_memory(
    path: Path, *, now: float = 0.0, warn: Callable[[str], None] = lambda _: None
) -> Memory:
    """What a control that starts on this file would remember, by the reader's clock. Changes nothing on disk (A53)."""
    at = moment(now)
    return _looked_at(path, lambda db: rows.memory(db, at, warn), Memory(), warn)


def read_sources(path: Path, *, warn: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """The last good catalog that a control which starts on this file would fall back on (F11). Changes nothing."""
    return _looked_at(path, rows.sources, {}, warn)


def read_keys(path: Path, *, warn: Callable[[str], None] = lambda _: None) -> Keys:
    """API keys of clients in this file. Changes nothing."""
    return _looked_at(path, lambda db: rows.api_keys(db, warn), {}, warn)


def _looked_at(
    path: Path, look: Callable[[sqlite3.Connection], T], empty: T, warn: Callable[[str], None]
) -> T:
    """A file that is there and cannot be read is no empty one: who asks cannot tell what control would do (exit 3)."""
    path = files.real(path)
    try:
        if not files.there(path):
            return empty
        if not files.only_in_memory(path):
            try:
                with closing(_read_only(path)) as db, _worded(path):
                    return look(db)
            except StoreError as e:
                if not e.busy:
                    raise
        with closing(_in_memory(path)) as db, _worded(path):
            return look(db)
    except StoreError as e:
        if not e.corrupt:
            e.exit_code = EXIT_UNKNOWN
            raise
        warn(f"{e.message}; a control that starts now would go on with an empty history")
        return empty


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


def edit_keys(path: Path, edit: Callable[[Keys, str], tuple[Keys, T]]) -> T:
    """With no control running: `edit(keys, now)` gives the keys as they shall be, and the answer.

    Where a lease store has them too they are nobody's to change here: whoever leads next goes by that.
    """
    if elsewhere := noted.elsewhere(path):
        msg = f"the API keys of {path} are kept in {elsewhere} too, by which the next leader goes"
        hint = "start control, then the same without --inventory; or run control once with --lease file"
        raise LlmgwError(msg, hint, code="kept_elsewhere", status=409)
    try:
        files.real(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        msg = f"state dir {path.parent} cannot be used: {e.strerror}"
        raise StoreError(msg, "name another file: --inventory FILE") from e
    with Flock(path):
        store = Store(path, warn=lambda _: None)
        store.open()
        try:
            now = moment(0.0)
            keys, answer = edit(store.keys(), now.iso(0.0))
            store.save(Change(keys=keys, durable=True), now)
        finally:
            store.close()
    return answer


# ---------------------------------------------------------------- the file


def _create(path: Path) -> None:
    """Under another name and moved into place: a kill in between leaves nothing half made."""
    made = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in path.parent.glob(f"{glob.escape(path.name)}.new-*"):
            left.unlink(
                missing_ok=True
            )  # by one that was killed here; in a container the next has the same pid
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            _connected(made, named=path).close()
            crash("before_create")
            made.rename(path)
        finally:
            made.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as e:
        msg = f"cannot create the inventory {path}: {e.strerror}"
        raise StoreError(msg, "check the folder's permissions and free space") from e


def _connected(path: Path, *, named: Path | None = None) -> sqlite3.Connection:
    def prepare(db: sqlite3.Connection) -> None:
        _check(db, path)
        db.execute("PRAGMA journal_mode=DELETE")
        rows.migrate(db)

    return _prepared(str(path), named or path, prepare)


def _read_only(path: Path) -> sqlite3.Connection:
    where = f"{path.as_uri()}?mode=ro"
    return _prepared(where, path, lambda db: _check(db, path))


def _in_memory(path: Path) -> sqlite3.Connection:
    """For what SQLite would wait for, or roll back into the file: a writer that holds on, or one that was killed."""

    def prepare(db: sqlite3.Connection) -> None:
        if not hasattr(db, "deserialize"):
            msg = f"{path} cannot be read without writing: a writer holds on to it, or was killed"
            raise StoreError(msg, "start control; or use a Python with SQLite 3.36 or newer")
        db.deserialize(files.content(path))
        _check(db, path)

    return _prepared(":memory:", path, prepare)


def _prepared(
    where: str, path: Path, prepare: Callable[[sqlite3.Connection], None]
) -> sqlite3.Connection:
    with _worded(path):
        uri = where.startswith("file:")
        db = sqlite3.connect(where, uri=uri, timeout=BUSY_S, isolation_level=None)
        # Bytes that are no text are a record that cannot be read, not a reason to read none (F20).
        db.text_factory = lambda raw: raw.decode(errors="replace")
        try:
            db.execute("PRAGMA temp_store=MEMORY")
            prepare(db)
        except BaseException:
            db.close()
            raise
        return db


def _check(db: sqlite3.Connection, path: Path) -> None:
    if files.odd(path):
        msg = f"{path} is broken: its header has numbers that no SQLite writes"
        raise StoreError(msg, corrupt=True)
    version = rows.version(db)
    if version > len(MIGRATIONS):
        msg = f"{path} was written by a newer llmgw (format {version}, this one knows {len(MIGRATIONS)})"
        raise StoreError(msg, "use that version again, or start with another --inventory FILE")
    found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        msg = f"{path} is broken: {found}"
        raise StoreError(msg, corrupt=True)
    tables = rows.tables(db)
    lacking = _tables_wanted() - tables
    if not tables or not lacking:
        return
    if tables.isdisjoint(_tables_wanted()):
        msg = f"{path} is a database, but not an inventory of llmgw"
        raise StoreError(msg, "name another file: --inventory FILE")
    if version == len(MIGRATIONS):
        msg = f"{path} is broken: it has no table {min(lacking)[0]} as it should be"
        raise StoreError(msg, corrupt=True)


@cache
def _tables_wanted() -> set[tuple[str, str]]:
    """Name and wording of every table of this version's format."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        rows.migrate(db)
        return rows.tables(db)


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
    except (
        UnicodeError
    ) as e:  # in what SQLite says of it, where not even the names of tables are text
        msg = f"{path} is broken: {e}"
        raise StoreError(msg, corrupt=True) from e
