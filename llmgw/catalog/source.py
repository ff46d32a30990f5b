"""YAML text to a tree of nodes that remember where they stand. Nothing here knows what a catalog is.

Built from the parser's events, not from PyYAML's own composer: a key written twice is reported instead of lost, a
scalar keeps the text that was typed (`1.10`, `yes`, `0x10`), and neither deep nesting nor an anchor that contains
itself can recurse. Aliases share one node, so a "billion laughs" stays small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import yaml
from msgspec import Struct

from llmgw.catalog.words import quoted

#: A catalog is written by people; more than this is a mistake, and costs seconds to parse.
MAX_CHARS = 1 << 20
MAX_DEPTH = 40
#: Aliases are cheap to write and dear to follow; no catalog written by hand comes near this many values.
MAX_VALUES = 200_000
#: Whoever has this many has one.
MAX_PROBLEMS = 500

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAKS = re.compile(r"\s*[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]\s*")
_STRING_TAGS = ("!", "tag:yaml.org,2002:str")

#: What the parser says -> what usually lies behind it.
_SYNTAX_HINTS = {
    "mapping values are not allowed": 'a value with ": " in it needs quotes, or this line is indented too far',
    "could not find expected ':'": 'a key is followed by ": ", or this line is indented too little',
    "did not find expected key": "this line does not line up with its neighbours",
    "did not find expected ',' or": "a bracket or brace above is not closed",
    "did not find expected '-' indicator": "the items of a list must line up",
    "found unexpected end of stream": "a quote above is not closed",
    "found unknown escape character": 'use single quotes: a backslash means something else inside "…"',
    "found another document": "keep one document in a file: take the second `---` out",
}


class Pos(NamedTuple):
    """Where something stands; line and column count from 1."""

    file: str
    line: int = 1
    column: int = 1

    @property
    def text(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class GiveUp(Exception):  # noqa: N818 - not an error of its own: the reason is among the problems
    """Reading on would not tell anybody anything, or not in reasonable time."""


class Problems:
    """Everything wrong with the sources, as `FILE:LINE:COL: what - hint`."""

    def __init__(self) -> None:
        self._found: dict[tuple[Pos, str], None] = {}

    def add(self, at: Pos, what: str, hint: str = "") -> None:
        if len(self._found) > MAX_PROBLEMS:
            raise GiveUp
        if len(self._found) == MAX_PROBLEMS:
            self._found[at, f"more than {MAX_PROBLEMS} problems - is this a catalog at all?"] = None
            raise GiveUp
        text = f"{what} - {hint}" if hint else what
        self._found[at, _BREAKS.sub(" ", text)] = None

    def __bool__(self) -> bool:
        return bool(self._found)

    def texts(self) -> tuple[str, ...]:
        return tuple(f"{at.text}: {text}" for at, text in sorted(self._found))


class Scalar(Struct):
    """`plain`: typed without quotes, so that `1` may be a number and an empty one means nothing was given."""

    at: Pos
    text: str
    plain: bool = True

    @property
    def nothing(self) -> bool:
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


class Items(Struct):
    at: Pos
    items: list[Node]


class Entry(NamedTuple):
    key: Pos
    value: Node


class Map(Struct):
    at: Pos
    entries: dict[str, Entry]


Node = Scalar | Items | Map


def compose(text: str, file: str, problems: Problems) -> Node | None:
    """The one document in `text`; None when there is none to read, with the reason in `problems`."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_CHARS:
        problems.add(
            Pos(file),
            f"{len(text)} characters, more than {MAX_CHARS}",
            "split it: a directory works too",
        )
        return None
    odd = _UNPRINTABLE.search(text)
    if odd is not None:
        at = position(text, odd.start(), file)
        problems.add(
            at, f"character U+{ord(odd[0]):04X} is not text", "save the file as plain UTF-8 text"
        )
        return None
    try:
        return _Composer(file, problems).run(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        problems.add(*_worded(text, file, error))
    except GiveUp:
        pass
    return None


def position(text: str, offset: int, file: str) -> Pos:
    before = text[:offset]
    return Pos(file, before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


class _Open(Struct):
    """A list or mapping whose end has not come yet. `key` is the one that waits for its value."""

    node: Items | Map
    key: Scalar | None = None
    skip: bool = False
    merges: list[Map] = []


class _Composer:
    def __init__(self, file: str, problems: Problems) -> None:
        self.file = file
        self.problems = problems
        self.open: list[_Open] = []
        self.anchors: dict[str, Node] = {}
        self.root: Node | None = None
        self.merged = 0

    def run(self, events: Iterator[yaml.Event]) -> Node:
        for event in events:
            self._take(event)
        return self.root or Scalar(Pos(self.file), "")

    def _take(self, event: yaml.Event) -> None:
        match event:
            case yaml.ScalarEvent():
                self._check_tag(event)
                plain = event.implicit[0] and event.tag != "!"
                self._put(self._named(event, Scalar(self._at(event), event.value, plain)))
            case yaml.SequenceStartEvent():
                self._enter(event, Items(self._at(event), []))
            case yaml.MappingStartEvent():
                self._enter(event, Map(self._at(event), {}))
            case yaml.SequenceEndEvent():
                self._put(self.open.pop().node)
            case yaml.MappingEndEvent():
                self._put(_merged(self.open.pop()))
            case yaml.AliasEvent():
                self._put(self._resolve(event))
            case yaml.DocumentStartEvent() if self.root is not None:
                self.problems.add(
                    self._at(event), "a second document", _SYNTAX_HINTS["found another document"]
                )
                raise GiveUp
            case _:
                pass

    def _enter(self, event: yaml.CollectionStartEvent, node: Items | Map) -> None:
        self._check_tag(event)
        if len(self.open) == MAX_DEPTH:
            self.problems.add(
                node.at,
                f"nested deeper than {MAX_DEPTH} levels",
                "no key of a catalog is that deep",
            )
            raise GiveUp
        self.open.append(_Open(node, merges=[]))
        self._named(event, node)

    def _named(self, event: yaml.NodeEvent, node: Node) -> Node:
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _resolve(self, event: yaml.AliasEvent) -> Node:
        node = self.anchors.get(event.anchor or "")
        if node is None:
            self.problems.add(
                self._at(event),
                f"unknown anchor *{event.anchor}",
                f"no &{event.anchor} above this line",
            )
            raise GiveUp
        if any(opened.node is node for opened in self.open):
            self.problems.add(
                self._at(event),
                f"*{event.anchor} would contain itself",
                "point it at something else",
            )
            raise GiveUp
        return node

    def _put(self, node: Node) -> None:
        """Hand a finished node to whatever it stands in."""
        if not self.open:
            self.root = node
            return
        top = self.open[-1]
        if isinstance(top.node, Items):
            top.node.items.append(node)
        elif top.key is None and not top.skip:
            self._put_key(top, node)
        else:
            self._put_value(top, top.node, node)

    def _put_key(self, top: _Open, node: Node) -> None:
        if isinstance(node, Scalar):
            top.key = node
            return
        top.skip = True
        self.problems.add(
            node.at, "a key must be one word", "quote it when it holds brackets, braces or ${…}"
        )

    def _put_value(self, top: _Open, into: Map, node: Node) -> None:
        key, top.key, top.skip = top.key, None, False
        if key is None:
            return
        if key.plain and key.text == "<<":
            self._merge(top, key, node)
        elif key.text in into.entries:
            first = into.entries[key.text].key.line
            hint = f"the first is on line {first}; YAML would keep only one of them"
            self.problems.add(key.at, f"key {quoted(key.text)} is there twice", hint)
        else:
            into.entries[key.text] = Entry(key.at, node)

    def _merge(self, top: _Open, key: Scalar, node: Node) -> None:
        if self.merged > MAX_VALUES:
            self.problems.add(key.at, f"<< brings more than {MAX_VALUES} keys", "merge less")
            raise GiveUp
        for source in node.items if isinstance(node, Items) else [node]:
            if isinstance(source, Map):
                top.merges.append(source)
                self.merged += len(source.entries)
            else:
                self.problems.add(
                    key.at, "<< takes a mapping, or a list of mappings", "write <<: *anchor"
                )

    def _check_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag is not None and event.tag not in _STRING_TAGS:
            self.problems.add(
                self._at(event),
                f"YAML tag {quoted(event.tag)}",
                "catalogs use no tags: take it out",
            )

    def _at(self, event: yaml.Event) -> Pos:
        mark = event.start_mark
        assert mark is not None, "every event of a text has a mark"
        return Pos(self.file, mark.line + 1, mark.column + 1)


def _merged(opened: _Open) -> Map:
    """Fill in what `<<` brings: a mapping's own keys win, then the first source that has the key."""
    assert isinstance(opened.node, Map)
    for source in opened.merges:
        for key, entry in source.entries.items():
            opened.node.entries.setdefault(key, entry)
    return opened.node


def _worded(text: str, file: str, error: yaml.MarkedYAMLError) -> tuple[Pos, str, str]:
    """Where and what, in words that say what to do about it."""
    mark, opened, problem = error.problem_mark, error.context_mark, error.problem or "no document"
    if mark is None:
        return Pos(file), f"not YAML: {problem}", "look at the file's first lines"
    at = Pos(file, mark.line + 1, mark.column + 1)
    if "cannot start any token" in problem:
        character = _character(text, mark.line, mark.column)
        if character == "\t":
            return at, "a tab in front of this", "YAML is indented with spaces only"
        return at, f"a value cannot start with {quoted(character)}", "put it in quotes"
    hints = (hint for said, hint in _SYNTAX_HINTS.items() if said in problem)
    hint = next(hints, "look at the indentation and the quotes here")
    if opened is not None and opened.line != mark.line:
        hint += f" (it began on line {opened.line + 1})"
    return at, f"not YAML: {problem}", hint


def _character(text: str, line: int, column: int) -> str:
    lines = text.splitlines()
    return lines[line][column : column + 1] if line < len(lines) else ""
