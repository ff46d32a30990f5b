"""What workers of one gateway share: how one is started, and each one's metrics, as any of them may be scraped.

Answers for: one text in which every sample names its worker. A counter there never goes back while its process lives:
a worker shows what it published, its own as the others', whoever answers. It may not know a gateway's inside.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable

from msgspec import Struct

from llmgw.gateway.settings import GatewaySettings

_HEAD = struct.Struct("<II")
TRIES = 3


class Birth(Struct, frozen=True):
    """What a worker is told by its parent. `family`: all workers of one parent; `slots`: each one's metrics.

    `counts`: what they count together (`common`).
    """

    settings: GatewaySettings
    index: int
    family: str
    listener: int
    slots: tuple[int, ...]
    counts: int = -1


def slots(n: int) -> tuple[int, ...]:
    """Memory that a worker leaves to the one after it, so that a series does not vanish with a crash."""
    return tuple(os.memfd_create(f"llmgw-metrics-{i}", os.MFD_CLOEXEC) for i in range(n))


def publish(slot: int, text: bytes) -> None:
    """Length and checksum go first: a reader that meets a writer sees that they do not fit."""
    os.pwrite(slot, _HEAD.pack(len(text), zlib.crc32(text)) + text, 0)


def published(slot: int) -> bytes:
    """The last text, whole; empty where none is there yet, or its writer was stopped half-way."""
    for _ in range(TRIES):
        data = os.pread(slot, os.fstat(slot).st_size, 0)
        if len(data) < _HEAD.size:
            break
        size, checksum = _HEAD.unpack_from(data)
        text = data[_HEAD.size : _HEAD.size + size]
        if zlib.crc32(text) == checksum:
            return text
    return b""


def merged(texts: Iterable[bytes]) -> bytes:
    """One exposition of several: a family's head once, its samples together, each with its `worker`."""
    families: dict[bytes, list[bytes]] = {}
    samples: list[bytes] = []
    for index, text in enumerate(texts):
        label = b'worker="%d"' % index
        for line in text.splitlines(keepends=True):
            if line.startswith(b"# HELP "):
                samples = families.setdefault(line, [])
            elif line.startswith(b"# TYPE "):
                if not samples:
                    samples.append(line)
            else:
                samples.append(_labelled(line, label))
    return b"".join(head + b"".join(lines) for head, lines in families.items())


def _labelled(line: bytes, label: bytes) -> bytes:
    name, brace, rest = line.partition(b"{")
    if brace:
        return b"%b{%b,%b" % (name, label, rest)
    name, _, value = line.partition(b" ")
    return b"%b{%b} %b" % (name, label, value)
