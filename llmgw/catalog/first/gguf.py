"""What a GGUF file says of itself in its header: architecture, context, and what its KV cache takes.

Source: docs/gguf.md of ggml-org/ggml (format, version 3; "standardized key-value pairs"). May not read weights.
"""

from __future__ import annotations

import stat
import struct
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

_MAGIC = b"GGUF"
#: Value types of the format -> what `struct` calls them.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
#: The vocabulary follows the architecture's keys in every file of llama.cpp's converter, and is millions of bytes.
_STOP = "tokenizer."
_MAX_KEYS, _MAX_TEXT, _MAX_ITEMS = 10_000, 1 << 20, 1 << 20
#: Two bytes a value, the server's default type of cache.
_KV_BYTES = 2
#: `pooling_type` of an encoder that ranks, of those that embed (enum llama_pooling_type in llama.h).
_RANKS, _EMBEDS = 4, (1, 2, 3)


class GgufError(ValueError):
    """It is no GGUF file, or a broken one."""


class Header(Struct, frozen=True):
    """`trained_context` 0 where the file does not say; `kv_bytes_per_token` 0 for an encoder."""

    architecture: str
    name: str
    trained_context: int
    kv_bytes_per_token: int
    kind: str


def read(path: Path) -> Header:
    """GgufError, OSError; who wrote the file may have put anything into it."""
    if not stat.S_ISREG(path.stat().st_mode):  # a FIFO would be waited for
        msg = "it is no plain file"
        raise GgufError(msg)
    with path.open("rb") as file:
        keys = _keys(file)
    try:
        return _header(keys)
    except (TypeError, ValueError, OverflowError) as e:
        msg = f"a key of another kind than it should be: {e}"
        raise GgufError(msg) from e


def _header(keys: dict[str, Any]) -> Header:
    architecture = str(keys.get("general.architecture", ""))

    def number(key: str) -> int:
        value = keys.get(f"{architecture}.{key}", 0)
        return int(value) if isinstance(value, int | float) else 0

    return Header(
        architecture,
        str(keys.get("general.name", "")),
        number("context_length"),
        _per_token(keys, architecture, number),
        _kind(architecture, number("pooling_type")),
    )


def _kind(architecture: str, pooling: int) -> str:
    if architecture == "clip":
        return "projector"
    if pooling == _RANKS:
        return "rerank"
    return "embed" if pooling in _EMBEDS or architecture.endswith("bert") else "chat"


def _per_token(keys: dict[str, Any], architecture: str, number: Any) -> int:
    """Keys and values of all layers for one token. Layers may differ in heads; sliding windows make it less."""
    layers, heads = number("block_count"), number("attention.head_count")
    per_layer = keys.get(f"{architecture}.attention.head_count_kv", heads)
    kv_heads = sum(per_layer) if isinstance(per_layer, list) else int(per_layer or 0) * layers
    width = number("embedding_length") // heads if heads else 0
    key = number("attention.key_length") or width
    value = number("attention.value_length") or width
    return int(kv_heads) * (key + value) * _KV_BYTES


def _keys(file: BinaryIO) -> dict[str, Any]:
    if file.read(4) != _MAGIC:
        msg = "it does not begin with GGUF"
        raise GgufError(msg)
    version, _tensors, count = _unpacked(file, "<IQQ")
    if version not in (2, 3) or count > _MAX_KEYS:
        msg = f"GGUF version {version} with {count} keys"
        raise GgufError(msg)
    keys: dict[str, Any] = {}
    for _ in range(count):
        key = _text(file)
        if key.startswith(_STOP):
            break
        keys[key] = _value(file, *_unpacked(file, "<I"))
    return keys


def _unpacked(file: BinaryIO, form: str) -> tuple[Any, ...]:
    size = struct.calcsize(form)
    data = file.read(size)
    if len(data) != size:
        msg = "it ends within its header"
        raise GgufError(msg)
    return struct.unpack(form, data)


def _text(file: BinaryIO) -> str:
    (length,) = _unpacked(file, "<Q")
    if length > _MAX_TEXT:
        msg = f"a text of {length} bytes in its header"
        raise GgufError(msg)
    data = file.read(length)
    if len(data) != length:
        msg = "it ends within its header"
        raise GgufError(msg)
    return data.decode(errors="replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind in _SCALARS:
        return _unpacked(file, f"<{_SCALARS[kind]}")[0]
    if kind != _ARRAY:
        msg = f"a value of type {kind} in its header"
        raise GgufError(msg)
    of, count = _unpacked(file, "<IQ")
    if count > _MAX_ITEMS or of == _ARRAY:
        msg = f"a list of {count} values of type {of} in its header"
        raise GgufError(msg)
    if of in _SCALARS:
        return list(_unpacked(file, f"<{count}{_SCALARS[of]}"))
    return [_value(file, of) for _ in range(count)]
