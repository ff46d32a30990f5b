"""The agent's memory on disk: one file per (shard, incarnation), and the highest token obeyed.

Answers for: what is written is whole or absent, an unreadable file is kept aside and reported, never dropped (F42,
A39), and fields of a newer agent survive being read by this one. May not decide what a record means.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
from msgspec.structs import replace

from llmgw import wire
from llmgw.agent import crash
from llmgw.agent.disk import (
    ahead_of,
    put_in_place,
    read_bounded,
    remove_durably,
    settle,
    sync_dir,
    write_ahead,
    write_durably,
)
from llmgw.core.supervise.claims import ID, SHARD
from llmgw.core.types.messages import EPOCH_END, SHARD_STATES, Start, Token
from llmgw.core.types.record import Key, Record
from llmgw.errors import LlmgwError
from llmgw.wire.unknown import merged, unknown

log = structlog.get_logger()
#: Version of the record file. A file of a higher one is not guessed at: it counts as unreadable.
FORMAT = 1
SUFFIX, ASIDE, RELEASED = ".json", ".unreadable", ".released"
#: A record holds an order, which a message bounds; of what is longer none was written by an agent.
MAX_BYTES = 8 << 20
_NAMES = frozenset(f.encode_name for f in msgspec.structs.fields(Record)) - {"watch", "extra"}


class JournalError(LlmgwError):
    """The folder of the records cannot be read: what this node runs is not known."""

    code = "journal"


class Loaded(NamedTuple):
    records: tuple[Record, ...]
    token: Token | None


class Journal:
    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "records"
        self.token_path = state_dir / "token.json"
        #: by what they are taken for: their names may be anything
        self._aside: dict[Key, list[Path]] = {}
        #: written, and perhaps not on the disk yet
        self._loose: set[Path] = set()
        #: written beside its place, and what
        self._ahead: dict[Path, bytes] = {}
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as e:
            raise _unusable(self.folder, e) from e

    def write(self, record: Record) -> None:
        path, data = self._path(record.key), _encoded(record)
        if self._ahead.pop(path, None) == data:
            put_in_place(path)
            self._loose.discard(path)
            return
        at_once = record.intent or not path.exists()
        write_durably(path, data, at_once=at_once)
        (self._loose.discard if at_once else self._loose.add)(path)

    def ahead(self, record: Record) -> None:
        """Have all of it on the disk but its name: nothing is journaled by it, and the same one's `write` takes less.

        Whoever waits for that waits for half as much of the disk (P9).
        """
        path, data = self._path(record.key), _encoded(record)
        self._ahead.pop(path, None)
        write_ahead(path, data)
        self._ahead[path] = data

    def tidy(self, kept: Collection[Key]) -> None:
        """What was written ahead of its time for nothing, but for these."""
        for path in self._ahead.keys() - {self._path(key) for key in kept}:
            del self._ahead[path]
            with contextlib.suppress(OSError):  # the next agent removes it
                ahead_of(path).unlink()

    def settle(self) -> None:
        """Have on the disk what became of processes since they were to be spawned.

        It was not waited for, a request might wait behind it (P9): with the power the processes go too, and the boot id
        tells (F39). A killed agent's successor reads it all the same.
        """
        loose, self._loose = self._loose, set()
        try:
            for path in loose:
                with contextlib.suppress(FileNotFoundError):
                    settle(path)
            if loose:
                sync_dir(self.folder)
        except OSError as e:
            log.warning("the journal is not on the disk yet", error=str(e))
            self._loose |= loose

    def delete(self, key: Key, *, released: bool = False) -> None:
        """Gone for good; of what was released a note stays for as long as its processes may (`released`)."""
        path = self._path(key)
        if released and path.exists():
            path.replace(path.with_suffix(RELEASED))
        for aside in (*self._aside.pop(key, ()), path.with_suffix(ASIDE)):
            _remove(aside)
        self._ahead.pop(path, None)
        ahead_of(path).unlink(missing_ok=True)
        remove_durably(path)

    def released(self, boot_id: str) -> frozenset[Key]:
        """Shards that were released by hand in this boot; of earlier boots nothing is left, so no note either."""
        keys = set()
        for path in self._paths(RELEASED):
            try:
                record = _record(read_bounded(path, MAX_BYTES))
            except (wire.WireError, OSError) as e:
                log.warning(
                    "a note of a released shard is unreadable", file=str(path), error=str(e)
                )
                continue
            if record.boot_id == boot_id:
                keys.add(record.key)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
        return frozenset(keys)

    def store_token(self, token: Token) -> None:
        write_durably(self.token_path, wire.encode(token))

    def load(self, boot_before: str = "") -> Loaded:
        """Everything; a bad file spoils itself only, and is of the boot `boot_before` at the latest."""
        for path in self._paths(f"{SUFFIX}.new"):
            with contextlib.suppress(OSError):  # never renamed: nothing was done on its strength
                path.unlink()
        read = [self._checked(path) for path in self._paths(SUFFIX)]
        good = [found for found in read if isinstance(found, Record)]
        stuck = [found for found in read if isinstance(found, Path)]
        sync_dir(self.folder)
        have = {r.key for r in good}
        bad = []
        for path in sorted({*self._paths(ASIDE), *stuck}):
            bad.append(_unreadable(path, boot_before))
            self._aside.setdefault(bad[-1].key, []).append(path)
        return Loaded((*good, *(r for r in bad if r.key not in have)), self._token())

    def _paths(self, suffix: str) -> list[Path]:
        """Not by `glob`, for which a folder that cannot be read is an empty one."""
        try:
            names = sorted(os.listdir(self.folder))  # noqa: PTH208  names only, of very many
        except OSError as e:
            raise _unusable(self.folder, e) from e
        return [self.folder / name for name in names if name.endswith(suffix)]

    def _checked(self, path: Path) -> Record | Path | None:
        """What it says; None where it was set aside, its own path where even that cannot be done."""
        try:
            record = _record(read_bounded(path, MAX_BYTES))
            wrong = "" if self._path(record.key) == path else f"it is about {record.key}"
        except (wire.WireError, OSError) as e:
            wrong = str(e)
        else:
            if not wrong:
                return record
        aside = path.with_suffix(ASIDE)
        said = "a record is unreadable: its shard is held as unknown, the file is kept"
        stuck: Path | None = None
        try:
            path.replace(aside)
        except OSError:
            stuck = path
        crash.here("record-set-aside")
        log.error(said, file=str(stuck or aside), error=wrong)
        return stuck

    def _token(self) -> Token | None:
        """A token that cannot be read is as none: the next leader's is obeyed."""
        try:
            token = wire.decode(read_bounded(self.token_path, MAX_BYTES), Token)
        except FileNotFoundError:
            return None
        except (wire.WireError, OSError) as e:
            error = str(e)
        else:
            if 0 <= token.epoch < EPOCH_END:
                return token
            error = f"no leader ever had epoch {token.epoch}"
        log.warning("the token file is unreadable", file=str(self.token_path), error=error)
        with contextlib.suppress(
            OSError
        ):  # a folder of that name: writing the next token will tell
            self.token_path.replace(self.token_path.with_suffix(ASIDE))
        return None

    def _path(self, key: Key) -> Path:
        """Names are checked before a record is made (`claims.py`), so none holds a slash or starts with a dot."""
        shard, incarnation = key
        return self.folder / f"{shard.replace('/', '@')}@{incarnation}{SUFFIX}"


def _unusable(path: Path, error: OSError) -> JournalError:
    """Started without it an agent would report to run nothing, and control would start all of it again."""
    msg = f"{path}: the journal cannot be used: {error.strerror or error}"
    return JournalError(msg, "let the agent's user read and write it, or give another --state-dir")


def _remove(path: Path) -> None:
    """Also what is no file and has something in it: that is moved out of the way, not deleted."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        path.replace(path.with_name(f"{path.name}.removed"))


def _encoded(record: Record) -> bytes:
    plain = msgspec.to_builtins(record)
    del plain["watch"]
    extra = plain.pop("extra")
    return wire.encode(merged(plain, extra) | {"format": FORMAT})


def _record(raw: bytes) -> Record:
    plain: dict[str, Any] = wire.decode(raw, dict[str, Any])
    if plain.get("format") != FORMAT:
        msg = f"format {plain.get('format')!r}, this agent reads {FORMAT}"
        raise wire.WireError(msg)
    known = {k: v for k, v in plain.items() if k in _NAMES}
    try:
        record = msgspec.convert(known, Record)
    except msgspec.ValidationError as e:
        raise wire.WireError(str(e)) from e
    start = record.start
    if not (SHARD.fullmatch(start.shard) and start.shard == f"{start.replica}/{start.rank}"):
        msg = f"shard {start.shard!r} of {start.replica!r} is no name"
        raise wire.WireError(msg)
    mine = {k: v for k, v in msgspec.to_builtins(record).items() if k in _NAMES}
    extra = unknown({k: v for k, v in plain.items() if k != "format"}, mine)
    # Missing, or a state of a newer agent: re-attach finds out what it is today.
    state = record.state if plain.get("state") in SHARD_STATES else "unknown"
    return replace(record, state=state, extra=extra)


def _unreadable(path: Path, boot_before: str) -> Record:
    """As much as the name of the file tells."""
    replica, rank, incarnation = (*path.stem.split("@"), "", "", "")[:3]
    shard = f"{replica}/{rank or 0}"
    if not (SHARD.fullmatch(shard) and (ID.fullmatch(incarnation) or not incarnation)):
        # Not named by us: no name to look for logs by, or to tell control.
        replica, rank, incarnation = f"unreadable-{zlib.crc32(os.fsencode(path.name)):08x}", "", ""
    number = int(rank or 0)
    return Record(
        start=Start(
            shard=f"{replica}/{number}",
            replica=replica,
            incarnation=incarnation,
            model="",
            profile="",
            rank=number,
        ),
        state="unknown",
        partial=True,
        boot_id=boot_before,
        error=f"its record cannot be read; the file is kept: {os.fsencode(path).decode(errors='replace')}",
    )
