"""A SQLite file as it was before the transaction that a killed writer left half done, out of its rollback journal.

SQLite does the same when it next opens the file, but writes it back; a dry run must not write (A53). Bytes in, bytes
out, after https://www.sqlite.org/fileformat2.html#the_rollback_journal. It may not open a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MAGIC = bytes.fromhex("d9d505f920a163d7")
#: records that follow (-1: to the end), nonce of the checksums, pages of the file before, bytes of a sector, of a page
_HEADER = struct.Struct(">5I")
_U32 = struct.Struct(">I")
_SIZES = frozenset(1 << power for power in range(9, 17))
_TO_THE_END = 0xFFFFFFFF
#: where page 1 of a file counts its transactions
_COUNTER = slice(24, 28)


def rolled_back(data: bytes, journal: bytes) -> bytes:
    """`data` with every page that the journal saved in its place, and as long as it was."""
    first = _header(journal, 0)
    if first is None:
        return data
    _, _, pages, _, page_bytes = first
    whole = bytearray(data[: pages * page_bytes].ljust(pages * page_bytes, b"\0"))
    done = set()
    for number, page in _records(journal, page_bytes):
        if number not in done and 0 < number <= pages:
            done.add(number)
            whole[(number - 1) * page_bytes : number * page_bytes] = page
    return bytes(whole)


def belongs(data: bytes, journal: bytes) -> bool:
    """Whether the journal is of a transaction on this very file: a restored backup may lie beside a killed writer's.

    SQLite does not ask, and would put pages of the one into the other. Page 1 counts the transactions, each by one.
    """
    first = _header(journal, 0)
    if first is None:
        return True
    _, _, pages, _, page_bytes = first
    for number, page in _records(journal, page_bytes):
        if number == 1 and len(data) >= _COUNTER.stop:
            before, now = (_U32.unpack(x[_COUNTER])[0] for x in (page, data))
            return now in (before, (before + 1) & 0xFFFFFFFF)
    # Without it the transaction had not come so far as to let the file grow.
    return len(data) == pages * page_bytes


def _header(journal: bytes, at: int) -> tuple[int, int, int, int, int] | None:
    """None where the journal ends: one that is empty or overwritten with zeros belongs to a finished transaction."""
    raw = journal[at + len(_MAGIC) : at + len(_MAGIC) + _HEADER.size]
    if journal[at : at + len(_MAGIC)] != _MAGIC or len(raw) < _HEADER.size:
        return None
    records, nonce, pages, sector_bytes, page_bytes = _HEADER.unpack(raw)
    sound = all(n in _SIZES for n in (sector_bytes, page_bytes))
    return (records, nonce, pages, sector_bytes, page_bytes) if sound else None


def _records(journal: bytes, page_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Page number and content, up to the first that was not written whole: the file was not touched after it."""
    at, size = 0, page_bytes + 8
    while (header := _header(journal, at)) is not None:
        records, nonce, _, sector_bytes, _ = header
        at += sector_bytes
        if records == _TO_THE_END:
            records = (len(journal) - at) // size
        for _ in range(records):
            record = journal[at : at + size]
            if len(record) < size:
                return
            page = record[4:-4]
            if _U32.unpack(record[-4:])[0] != _checksum(nonce, page):
                return
            yield _U32.unpack(record[:4])[0], page
            at += size
        at += -at % sector_bytes


def _checksum(nonce: int, page: bytes) -> int:
    """Of every 200th byte, from the end: enough to tell a record that a power cut left in pieces."""
    return (nonce + sum(page[i] for i in range(len(page) - 200, 0, -200))) & 0xFFFFFFFF
