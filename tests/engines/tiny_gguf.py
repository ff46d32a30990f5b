"""Writes a tiny llama-architecture model file that a real llama-server loads in under 0.1 s.

Answers for: a GGUF file whose replies are exact at any temperature. It may not need anything but
the standard library, and the same arguments always give the same bytes.

Attention and feed-forward add nothing to the residual stream, and each row of the output head is
the sum of the embeddings it follows, so the next token depends on the last one only:

* a prompt that ends in "count" -> " one two three ... ten." and stop (11 tokens with the end token)
* a prompt that ends in "loop"  -> " tick tock tick tock ..." until a limit or a cancel
* any other prompt              -> " hello from NAME." and stop (4 tokens): which file answered

    python -m tests.engines.tiny_gguf OUT --name alpha [--dim 64 --layers 2 --ffn 128 --ctx 4096]

Larger --dim, --layers and --ffn make it as slow to load and to answer as a test wants.
"""

import argparse
import itertools
import math
import random
import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # value types of the file format
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # token types
ALIGNMENT = 32
SHARPNESS = 40.0  # how far the wanted token's logit stands above the others
CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "{% if not loop.last %}\n{% endif %}{% endfor %}"
)
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten."]


@dataclass(frozen=True, slots=True)
class Shape:
    dim: int = 64
    layers: int = 2
    heads: int = 2
    ffn: int = 128
    ctx: int = 4096


@dataclass(frozen=True, slots=True)
class Vocabulary:
    tokens: list[str]
    types: list[int]
    follows: list[int]  # token id -> id of the token that comes next


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    dims: tuple[int, ...]  # fastest first, as in the file
    data: Iterable[bytes]

    def info(self, offset: int) -> bytes:
        count = len(self.dims)
        return text(self.name) + struct.pack(f"<I{count}QIQ", count, *self.dims, 0, offset)

    @property
    def size(self) -> int:
        return 4 * math.prod(self.dims)


def vocabulary(name: str) -> Vocabulary:
    """Three specials, 256 byte tokens (any text can be read), the space, then whole words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, NORMAL]
    numbers = [f" {word}" for word in NUMBERS]
    words = ["count", "loop", " hello", " from", f" {name}.", " tick", " tock", *numbers]
    tokens += words
    types += [USER_DEFINED] * len(words)
    ids = {token: i for i, token in enumerate(tokens)}
    follows = [ids[" hello"]] * len(tokens)
    chains = (
        ["count", *numbers, "</s>"],
        [" hello", " from", f" {name}.", "</s>"],
        ["loop", " tick", " tock", " tick"],
    )
    for chain in chains:
        for before, after in itertools.pairwise(chain):
            follows[ids[before]] = ids[after]
    return Vocabulary(tokens, types, follows)


def direction(rng: random.Random, dim: int) -> list[float]:
    vector = [rng.gauss(0, 1) for _ in range(dim)]
    norm = math.sqrt(sum(x * x for x in vector))
    return [x / norm for x in vector]


def embeddings(words: Vocabulary, dim: int, rng: random.Random) -> tuple[bytes, bytes]:
    """The input embeddings and the output head that together are the chains of `vocabulary`."""
    hello = words.tokens.index(" hello")
    shared = direction(rng, dim)  # all tokens that lead to " hello" point (almost) the same way
    rows = [direction(rng, dim) for _ in words.tokens]
    head = [[0.0] * dim for _ in words.tokens]
    head[hello] = [SHARPNESS * x for x in shared]
    for token, after in enumerate(words.follows):
        if after == hello:
            rows[token] = [s + 0.05 * x for s, x in zip(shared, rows[token], strict=True)]
        else:
            head[after] = [h + SHARPNESS * x for h, x in zip(head[after], rows[token], strict=True)]
    return floats(x for row in rows for x in row), floats(x for row in head for x in row)


def floats(values: Iterable[float]) -> bytes:
    return array("f", values).tobytes()


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, value: float | str) -> bytes:
    packed = text(str(value)) if kind == STRING else struct.pack(f"<{'xxxxIIf?'[kind]}", value)
    return text(key) + struct.pack("<I", kind) + packed


def entries(key: str, kind: int, items: list[bytes]) -> bytes:
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(items)


def metadata(name: str, shape: Shape, words: Vocabulary) -> list[bytes]:
    return [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, name),
        entry("general.file_type", U32, 0),
        entry("llama.context_length", U32, shape.ctx),
        entry("llama.embedding_length", U32, shape.dim),
        entry("llama.block_count", U32, shape.layers),
        entry("llama.feed_forward_length", U32, shape.ffn),
        entry("llama.attention.head_count", U32, shape.heads),
        entry("llama.attention.head_count_kv", U32, shape.heads),
        entry("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        entry("llama.rope.dimension_count", U32, shape.dim // shape.heads),
        entry("llama.vocab_size", U32, len(words.tokens)),
        entry("tokenizer.ggml.model", STRING, "llama"),
        entry("tokenizer.ggml.pre", STRING, "default"),
        entries("tokenizer.ggml.tokens", STRING, [text(t) for t in words.tokens]),
        entries("tokenizer.ggml.scores", F32, [struct.pack("<f", 0.0)] * len(words.tokens)),
        entries("tokenizer.ggml.token_type", I32, [struct.pack("<i", t) for t in words.types]),
        entry("tokenizer.ggml.unknown_token_id", U32, 0),
        entry("tokenizer.ggml.bos_token_id", U32, 1),
        entry("tokenizer.ggml.eos_token_id", U32, 2),
        entry("tokenizer.ggml.add_bos_token", BOOL, value=True),
        entry("tokenizer.ggml.add_space_prefix", BOOL, value=False),
        entry("tokenizer.chat_template", STRING, CHAT),
    ]


def noise(rng: random.Random, count: int) -> Iterator[bytes]:
    """`count` floats, one short random block over and over: they only have to cost time."""
    block = floats(rng.gauss(0, 0.1) for _ in range(min(count, 4096)))
    whole, rest = divmod(count * 4, len(block))
    for _ in range(whole):
        yield block
    yield block[:rest]


def tensors(shape: Shape, words: Vocabulary, rng: random.Random) -> Iterator[Tensor]:
    """Every tensor in file order; a large one's data never sits in memory."""
    dim, ffn, size = shape.dim, shape.ffn, len(words.tokens)
    into, out = embeddings(words, dim, rng)
    ones = floats([1.0] * dim)
    yield Tensor("token_embd.weight", (dim, size), [into])
    yield Tensor("output_norm.weight", (dim,), [ones])
    yield Tensor("output.weight", (dim, size), [out])
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        yield Tensor(f"{block}.attn_norm.weight", (dim,), [ones])
        yield Tensor(f"{block}.ffn_norm.weight", (dim,), [ones])
        for part in ("attn_q", "attn_k", "attn_v"):
            yield Tensor(f"{block}.{part}.weight", (dim, dim), noise(rng, dim * dim))
        yield Tensor(f"{block}.attn_output.weight", (dim, dim), [bytes(4 * dim * dim)])
        for part in ("ffn_gate", "ffn_up"):
            yield Tensor(f"{block}.{part}.weight", (dim, ffn), noise(rng, dim * ffn))
        yield Tensor(f"{block}.ffn_down.weight", (ffn, dim), [bytes(4 * ffn * dim)])


def pad(size: int) -> bytes:
    return bytes(-size % ALIGNMENT)


def write(out: Path, name: str = "tiny", shape: Shape | None = None, seed: int = 0) -> Path:
    shape = shape or Shape()
    words = vocabulary(name)
    parts = list(tensors(shape, words, random.Random(seed)))
    keys = metadata(name, shape, words)
    infos, offset = [], 0
    for part in parts:
        infos.append(part.info(offset))
        offset += part.size + len(pad(part.size))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(parts), len(keys)) + b"".join(keys + infos)
    with out.open("wb") as file:
        file.write(head + pad(len(head)))
        for part in parts:
            file.writelines(part.data)
            file.write(pad(part.size))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny model file with exact replies.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", default="tiny", help="model name, and what it answers")
    parser.add_argument("--seed", type=int, default=0)
    for field, default in (("dim", 64), ("layers", 2), ("heads", 2), ("ffn", 128), ("ctx", 4096)):
        parser.add_argument(f"--{field}", type=int, default=default)
    asked = parser.parse_args()
    shape = Shape(asked.dim, asked.layers, asked.heads, asked.ffn, asked.ctx)
    path = write(asked.out, asked.name, shape, asked.seed)
    print(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
