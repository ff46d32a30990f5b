"""Two calls to systemd over D-Bus: make a scope of a process, move further processes into it.

Answers for: the bytes (D-Bus Specification; org.freedesktop.systemd1(5)), and an error in the words of systemd. No
library and no `busctl`: two messages do not earn a dependency. May not know what is moved, nor why.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from llmgw.errors import LlmgwError

Value = str | bool | Sequence[int] | Sequence[str]
#: name, D-Bus type, value
Property = tuple[str, str, Value]

_HEAD = struct.Struct("<cBBBIII")
_CALL, _REPLY, _ERROR = 1, 2, 3
_PATH, _INTERFACE, _MEMBER, _NAME, _ANSWERS, _TO, _TYPES = 1, 2, 3, 4, 5, 6, 8
_SIZE = 1 << 20


class BusError(LlmgwError):
    code = "bus"


class _Writer:
    """Each value begins at a multiple of its own size."""

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)

    def u32(self, value: int) -> None:
        self.align(4)
        self.data += struct.pack("<I", value)

    def string(self, text: str) -> None:
        raw = text.encode()
        self.u32(len(raw))
        self.data += raw + b"\0"

    def types(self, signature: str) -> None:
        self.data += bytes((len(signature),)) + signature.encode() + b"\0"

    def value(self, kind: str, value: Value) -> None:
        """A variant: its type, then itself."""
        self.types(kind)
        if isinstance(value, str):
            self.string(value)
        elif isinstance(value, bool):
            self.u32(value)
        else:
            self.list(value)

    def list(self, values: Sequence[int] | Sequence[str]) -> None:
        """The length does not count itself."""
        self.u32(0)
        begin = len(self.data)
        for each in values:
            if isinstance(each, str):
                self.string(each)
            else:
                self.u32(each)
        struct.pack_into("<I", self.data, begin - 4, len(self.data) - begin)

    def properties(self, properties: Sequence[Property]) -> None:
        """a(sv): the length counts neither itself nor the gap before the first one."""
        self.u32(0)
        at = len(self.data)
        self.align(8)
        begin = len(self.data)
        for name, kind, value in properties:
            self.align(8)
            self.string(name)
            self.value(kind, value)
        struct.pack_into("<I", self.data, at - 4, len(self.data) - begin)


class Method(NamedTuple):
    to: str
    path: str
    interface: str
    member: str
    types: str


HELLO = Method("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello", "")
START, ATTACH = (
    Method(
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
        member,
        types,
    )
    for member, types in (
        ("StartTransientUnit", "ssa(sv)a(sa(sv))"),
        ("AttachProcessesToUnit", "ssau"),
    )
)


def call(serial: int, method: Method, body: bytes) -> bytes:
    """The message: its head, what is called, the arguments."""
    fields = _Writer()
    for code, kind, value in (
        (_PATH, "o", method.path),
        (_INTERFACE, "s", method.interface),
        (_MEMBER, "s", method.member),
        (_TO, "s", method.to),
    ):
        fields.align(8)
        fields.data.append(code)
        fields.value(kind, value)
    if method.types:
        fields.align(8)
        fields.data.append(_TYPES)
        fields.types("g")
        fields.types(method.types)
    head = _HEAD.pack(b"l", _CALL, 0, 1, len(body), serial, len(fields.data))
    return head + fields.data + bytes(-len(fields.data) % 8) + body


class Answer(NamedTuple):
    kind: int
    serial: int
    error: str


def answer(kind: int, fields: bytes, body: bytes) -> Answer:
    """Of a message what matters to a caller: which call it answers, and the name and words of an error."""
    serial, name, at = 0, "", 0
    while at < len(fields):
        at += -at % 8
        code, types = fields[at], fields[at + 2 : at + 2 + fields[at + 1]]
        at += 3 + len(types)
        if types == b"g":
            at += fields[at] + 2
            continue
        at += -at % 4
        (number,) = struct.unpack_from("<I", fields, at)
        at += 4
        if code == _ANSWERS:
            serial = number
        if types in (b"s", b"o"):
            name = fields[at : at + number].decode() if code == _NAME else name
            at += number + 1
    if kind != _ERROR:
        return Answer(kind, serial, "")
    words = body[4:].partition(b"\0")[0].decode(errors="replace")
    return Answer(kind, serial, f"{words} ({name})")


class Bus:
    """One connection, for calls one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._serial = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[Bus]:
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=_SIZE)
        except OSError as e:
            msg = f"no bus answers at {path}: {(e.strerror or str(e)).lower()}"
            raise BusError(msg) from e
        try:
            bus = cls(reader, writer)
            await bus._begin()
            yield bus
        finally:
            writer.close()

    async def _begin(self) -> None:
        """Who we are is told by the kernel; the number must be the same."""
        self._writer.write(
            b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n"
        )
        said = await self._reader.readuntil(b"\r\n")
        if not said.startswith(b"OK "):
            msg = f"the bus refuses uid {os.geteuid()}: {said.decode(errors='replace').strip()}"
            raise BusError(msg)
        self._writer.write(b"BEGIN\r\n")
        await self._call(HELLO, b"")

    async def start_scope(self, unit: str, properties: Sequence[Property]) -> None:
        body = _Writer()
        body.string(unit)
        body.string("fail")  # of a unit with this name, if there is one: it is not ours to replace
        body.properties(properties)
        body.u32(0)  # no auxiliary units
        body.align(8)
        await self._call(START, bytes(body.data))

    async def attach(self, unit: str, pids: Sequence[int]) -> None:
        body = _Writer()
        body.string(unit)
        body.string("")
        body.list(pids)
        await self._call(ATTACH, bytes(body.data))

    async def _call(self, method: Method, body: bytes) -> None:
        self._serial += 1
        self._writer.write(call(self._serial, method, body))
        await self._writer.drain()
        while True:
            said = await self._message()
            if said.kind in (_REPLY, _ERROR) and said.serial == self._serial:
                break
        if said.kind == _ERROR:
            raise BusError(said.error)

    async def _message(self) -> Answer:
        """Signals come in between: they are read over."""
        head = await self._reader.readexactly(_HEAD.size)
        order, kind, _, _, body_bytes, _, field_bytes = _HEAD.unpack(head)
        if order != b"l" or body_bytes + field_bytes > _SIZE:
            msg = f"the bus speaks another byte order, or no D-Bus: {head!r}"
            raise BusError(msg)
        fields = await self._reader.readexactly(field_bytes)
        await self._reader.readexactly(-field_bytes % 8)
        return answer(kind, fields, await self._reader.readexactly(body_bytes))
