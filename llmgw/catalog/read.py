"""Nodes to values, by the types in `keys`: strict about keys, types, units and ranges, and never stops at the first.

What it returns keeps where every key stood, so that `build` can point at it when two keys do not go together. A value
that is wrong is left out of `values` but stays in `keys`: given, yet unusable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from msgspec import UNSET, Meta, Struct, UnsetType

from llmgw.catalog import hints, keys
from llmgw.catalog.source import MAX_VALUES, Entry, GiveUp, Items, Map, Node, Pos, Problems, Scalar
from llmgw.catalog.units import parse_duration
from llmgw.catalog.words import quoted
from llmgw.core.names import nearest
from llmgw.errors import UsageError

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_YES_NO = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


class Section(Struct):
    """One mapping of the file, read: `at` is where it was named, `keys` where each of its keys stands."""

    struct: type[Struct]
    at: Pos
    path: str
    keys: dict[str, Pos] = {}
    values: dict[str, Any] = {}
    items: dict[str, list[Pos]] = {}

    def where(self, key: str, item: int | None = None) -> Pos:
        """Where `key` stands, or that item of its list; the section itself where it is not given."""
        items = self.items.get(key, [])
        # An item that could not be read is not among the values, and then the numbers do not match.
        if item is not None and len(items) == len(self.values.get(key, ())):
            return items[item]
        return self.keys.get(key, self.at)


class Wanted(NamedTuple):
    """A declared type, taken apart: the bare type and what the `Meta`s around it ask for."""

    base: Any
    pattern: str | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    check: Callable[[str], object] | None = None
    never: bool = False
    what: str = ""
    hint: str = ""


class Reader:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.values = 0

    def section(
        self, node: Node, struct: type[Struct], path: str = "", at: Pos | None = None
    ) -> Section:
        """`node` as a mapping with the keys of `struct`."""
        section = Section(struct, at or node.at, path)
        for key, entry in self._entries(node, path).items():
            section.keys[key] = entry.key
            if key not in wanted(struct):
                place = f" in {path}" if path else ""
                self.problems.add(
                    entry.key, f"unknown key {quoted(key)}{place}", hints.for_key(key, struct)
                )
                continue
            value = self.value(entry.value, wanted(struct)[key], _join(path, key), entry.key)
            if value is not UNSET:
                section.values[key] = value
            if isinstance(entry.value, Items):
                section.items[key] = [item.at for item in entry.value.items]
        if isinstance(node, Map) or (isinstance(node, Scalar) and node.nothing):
            self._missing(section, struct)
        return section

    def _entries(self, node: Node, path: str) -> dict[str, Entry]:
        if isinstance(node, Map):
            return node.entries
        if not (isinstance(node, Scalar) and node.nothing):
            self._wrong(node, path or "the catalog", "a mapping (key: value)", "")
        return {}

    def _missing(self, section: Section, struct: type[Struct]) -> None:
        for field in keys.declared(struct):
            if field.required and field.name not in section.keys:
                place = f"{section.path}: " if section.path else ""
                self.problems.add(
                    section.at,
                    f'{place}"{field.name}" is missing',
                    _missing_hint(field.name, section),
                )

    def value(self, node: Node, wanted: Wanted, path: str, at: Pos | None = None) -> Any:
        """`node` as `wanted`; UNSET when it is not, with the reason noted."""
        self.values += 1
        if self.values > MAX_VALUES:
            self.problems.add(
                node.at, f"more than {MAX_VALUES} values", "anchors that multiply? write less"
            )
            raise GiveUp
        if get_origin(wanted.base) in (Union, UnionType):
            wanted = _unwrap(
                next(
                    kind
                    for kind in get_args(wanted.base)
                    if (get_origin(kind) is dict) == isinstance(node, Map)
                )
            )
        base = wanted.base
        if isinstance(base, type) and issubclass(base, Struct):
            return self.section(node, base, path, at)
        if get_origin(base) is tuple:
            return self._list(node, get_args(base)[0], wanted, path)
        if get_origin(base) is dict:
            return self._dict(node, base, path)
        return self._scalar(node, wanted, path)

    def _list(self, node: Node, kind: Any, wanted: Wanted, path: str) -> Any:
        if isinstance(node, Scalar) and node.nothing:
            return ()
        if not isinstance(node, Items):
            return self._wrong(node, path, "a list", wanted.hint)
        inner = _unwrap(kind)
        found = [
            self.value(item, inner, f"{path}[{_label(item, i)}]")
            for i, item in enumerate(node.items)
        ]
        return tuple(value for value in found if value is not UNSET)

    def _dict(self, node: Node, base: Any, path: str) -> Any:
        named, inner = map(_unwrap, get_args(base))
        found = {}
        for key, entry in self._entries(node, path).items():
            self._text(Scalar(entry.key, key), named, path)
            value = self.value(entry.value, inner, _join(path, key), entry.key)
            if value is not UNSET:
                found[key] = value
        return found

    def _scalar(self, node: Node, wanted: Wanted, path: str) -> Any:
        if not isinstance(node, Scalar):
            return self._wrong(node, path, _kind(wanted), wanted.hint)
        if wanted.base is Any:
            return self._as_written(node, wanted, path)
        if node.nothing:
            return self._refuse(node, f"{path}: no value", "give one, or take the line out")
        if get_origin(wanted.base) is Literal:
            return self._word(node, get_args(wanted.base), path)
        if wanted.base is bool:
            return self._bool(node, path)
        if wanted.base in (int, float):
            return self._number(node, wanted, path)
        return self._text(node, wanted, path)

    def _as_written(self, node: Scalar, wanted: Wanted, path: str) -> Any:
        if node.plain and not node.text:
            return self._refuse(node, f"{path}: no value", 'write "" for an empty one')
        return self._text(node, wanted, path)

    def _word(self, node: Scalar, words: tuple[Any, ...], path: str) -> Any:
        for word in words:
            if node.text == str(word):
                if node.plain or isinstance(word, str):
                    return word
                return self._refuse(
                    node, f"{path}: {quoted(node.text)} is text", "take the quotes off"
                )
        told = ", ".join(map(str, words))
        near = nearest(node.text, map(str, words)) or nearest(node.text.upper(), map(str, words))
        said = (
            f'did you mean "{near}"? (one of {told})'
            if near
            else f"one of {told}"
            if len(words) > 1
            else f"write {told}"
        )
        return self._refuse(node, f"{path}: {quoted(node.text)} is not known", said)

    def _bool(self, node: Scalar, path: str) -> Any:
        if node.plain and node.text in _BOOLS:
            return _BOOLS[node.text]
        meant = _YES_NO.get(node.text.lower(), node.text.lower() if node.text in _BOOLS else "")
        hint = f"write {meant}, without quotes" if meant else "write true or false"
        return self._refuse(node, f"{path}: {quoted(node.text)} is not true or false", hint)

    def _number(self, node: Scalar, wanted: Wanted, path: str) -> Any:
        pattern = _INTEGER if wanted.base is int else _NUMBER
        if not pattern.fullmatch(node.text) or not node.plain:
            hint = (
                "take the quotes off"
                if pattern.fullmatch(node.text)
                else hints.for_text(path.rpartition(".")[2], node.text)
                or "digits only: no unit, no quotes"
            )
            return self._refuse(node, f"{path}: {quoted(node.text)} is not {_kind(wanted)}", hint)
        number = wanted.base(node.text)
        if wanted.least is not None and number < wanted.least:
            return self._refuse(
                node, f"{path}: {node.text} is too small", f"at least {wanted.least:g}"
            )
        if wanted.above is not None and number <= wanted.above:
            return self._refuse(
                node, f"{path}: {node.text} is too small", f"more than {wanted.above:g}"
            )
        if wanted.most is not None and number > wanted.most:
            return self._refuse(node, f"{path}: {node.text} is too big", f"at most {wanted.most:g}")
        return number

    def _text(self, node: Scalar, wanted: Wanted, path: str) -> Any:
        if wanted.check is not None:
            if wanted.check is parse_duration and node.text == "never" and not wanted.never:
                return self._refuse(
                    node, f"{path}: never is not possible here", "give a time like 10m"
                )
            try:
                wanted.check(node.text)
            except UsageError as error:
                return self._refuse(node, f"{path}: {error.message}", error.hint)
        if wanted.what and not re.fullmatch(wanted.pattern or "", node.text):
            return self._refuse(
                node, f"{path}: {quoted(node.text)} is not {wanted.what}", _tidy(node.text, wanted)
            )
        return node.text

    def _wrong(self, node: Node, path: str, kind: str, hint: str) -> Any:
        is_ = {Scalar: "one value", Items: "a list", Map: "a mapping"}[type(node)]
        return self._refuse(node, f"{path}: wants {kind}, not {is_}", hint or f"write {kind} here")

    def _refuse(self, node: Node, what: str, hint: str) -> Any:
        self.problems.add(node.at, what, hint)
        return UNSET


@cache
def wanted(struct: type[Struct]) -> dict[str, Wanted]:
    """Every key of `struct` with what it takes."""
    return {field.name: _unwrap(field.type) for field in keys.declared(struct)}


def _unwrap(type_: Any) -> Wanted:
    """Take `Annotated` and the "may be left out" arm of a union away."""
    metas: list[Meta] = []
    while True:
        arms = [arm for arm in get_args(type_) if arm is not UnsetType]
        if get_origin(type_) is Annotated:
            metas += [meta for meta in type_.__metadata__ if isinstance(meta, Meta)]
            type_ = type_.__origin__
        elif UnsetType in get_args(type_):
            type_ = arms[0] if len(arms) == 1 else Union[tuple(arms)]  # noqa: UP007 - built at run time
        else:
            break
    return _joined(type_, metas)


def _joined(base: Any, metas: list[Meta]) -> Wanted:
    extra: dict[str, Any] = {}
    for meta in metas:
        extra.update(meta.extra or {})
    return Wanted(
        base,
        pattern=next((meta.pattern for meta in metas if meta.pattern), None),
        least=next((meta.ge for meta in metas if meta.ge is not None), None),
        above=next((meta.gt for meta in metas if meta.gt is not None), None),
        most=next((meta.le for meta in metas if meta.le is not None), None),
        **extra,
    )


def _kind(wanted: Wanted) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(
        wanted.base, "one value"
    )


def _tidy(text: str, wanted: Wanted) -> str:
    """A near text that would be taken."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:63]
    fits = (
        near
        for near in (word, word.replace("-", "_"), f"/{text}")
        if re.fullmatch(wanted.pattern or "", near)
    )
    near = next(fits, "")
    return f'did you mean "{near}"?' if near else "write another one"


def _label(node: Node, index: int) -> str:
    """How an item of a list is called in a path: by its name where it has one."""
    name = node.entries.get("name") if isinstance(node, Map) else None
    return (
        name.value.text[:63]
        if name is not None and isinstance(name.value, Scalar) and name.value.text
        else str(index)
    )


def _join(path: str, key: str) -> str:
    key = quoted(key)[1:-1]
    return f"{path}.{key}" if path else key


def _missing_hint(key: str, section: Section) -> str:
    examples = {
        "version": "begin the file with: version: 1",
        "name": "write - name: main",
        "power_w": "write power_w: 1500",
    }
    return examples.get(key, f"{section.path} needs it: profiles: [{{name: main, …}}]")
