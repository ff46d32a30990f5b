"""What was probably meant: the nearest key, the place where a key belongs, the word other tools use for it."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from msgspec import Struct

from llmgw.catalog import keys
from llmgw.core.names import nearest

#: Words from other tools' files, from people's fingers -> ours.
_OTHER_WORDS = {
    "alias": "aliases",
    "cmd": "command",
    "concurrency": "max_in_flight",
    "ctx": "context",
    "ctx_size": "context",
    "environment": "env",
    "gpu": "gpus",
    "health_check": "health",
    "keep_alive": "idle_timeout",
    "max_replicas": "max",
    "memory": "host_memory",
    "min_replicas": "min",
    "model_path": "weights",
    "nnodes": "nodes",
    "path": "weights",
    "port": "command",
    "replicas": "min",
    "sleep_after": "idle_timeout",
    "timeout": "start_timeout",
    "ttl": "idle_timeout",
    "vram": "gpu_memory",
    "watts": "power_w",
}


#: Keys of numbers -> what is like them and takes a path or a name in a hub.
_OF_TEXT = {"weight": "weights"}


def for_key(word: str, struct: type[Struct]) -> str:
    """What to try instead of an unknown key in `struct`: nearest here, else elsewhere, else what there is."""
    here = [field.name for field in keys.declared(struct)]
    meant = _OTHER_WORDS.get(word, word)
    if meant in here:
        return f'did you mean "{meant}"?'
    if meant in _places():
        return (
            f'did you mean "{_belongs(meant, struct)}"?'
            if meant != word
            else f"it belongs in {_home(meant, struct)}"
        )
    near = nearest(word, here)
    if near:
        return f'did you mean "{near}"?'
    near = nearest(word, _places())
    return f'did you mean "{_belongs(near, struct)}"?' if near else f"known here: {', '.join(here)}"


def for_text(key: str, text: str) -> str:
    """What to try where a text stands at a key of numbers and another key takes it, "" where none does."""
    meant = _OF_TEXT.get(key, "") if not text[:1].isdecimal() and "/" in text else ""
    return f'did you mean "{meant}"?' if meant else ""


def _belongs(word: str, struct: type[Struct]) -> str:
    return f"{_home(word, struct)}.{word}"


def _home(word: str, struct: type[Struct]) -> str:
    """Where `word` may stand, as near to `struct` as possible: `scaling` from within a model, else the whole way."""
    below = [path for path, owner in _walk(struct, "") if path and word in _names(owner)]
    return below[0] if below else _places()[word]


@cache
def _places() -> dict[str, str]:
    """Every key -> the first place that has it. Models come first: that is where most keys are looked for."""
    order = sorted(_walk(keys.CatalogFile, ""), key=lambda item: not item[0].startswith("models"))
    found: dict[str, str] = {}
    for path, owner in order:
        for name in _names(owner):
            found.setdefault(name, path or "the top level")
    return found


def _names(struct: type[Struct]) -> list[str]:
    return [field.name for field in keys.declared(struct)]


def _walk(struct: type[Struct], path: str) -> list[tuple[str, type[Struct]]]:
    """`struct` and every mapping below it, with where it stands."""
    found = [(path, struct)]
    for field in keys.declared(struct):
        for inner, is_map in _structs(field.type):
            step = f"{path}.{field.name}" if path else field.name
            found += _walk(inner, f"{step}.NAME" if is_map else step)
    return found


def _structs(type_: Any, *, is_map: bool = False) -> list[tuple[type[Struct], bool]]:
    if isinstance(type_, type) and issubclass(type_, Struct):
        return [(type_, is_map)]
    origin = getattr(type_, "__origin__", None)
    return [
        found
        for part in get_args(type_)
        for found in _structs(part, is_map=is_map or origin is dict)
    ]
