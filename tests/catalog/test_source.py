"""YAML to nodes: positions, texts as typed, what is reported, and that nothing crashes or takes for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw.catalog.source import (
    MAX_CHARS,
    MAX_PROBLEMS,
    GiveUp,
    Items,
    Map,
    Node,
    Pos,
    Problems,
    Scalar,
    compose,
    position,
)

Refused = Callable[[str], tuple[str, ...]]


def composed(text: str) -> Node:
    problems = Problems()
    node = compose(text, "c.yaml", problems)
    assert not problems, problems.texts()
    assert node is not None
    return node


def test_every_node_knows_where_it_stands() -> None:
    node = composed("a: 1\nb:\n  - x\n  - {c: y}\n")
    assert isinstance(node, Map)
    assert node.entries["b"].key == Pos("c.yaml", 2, 1)
    items = node.entries["b"].value
    assert isinstance(items, Items)
    assert [item.at for item in items.items] == [Pos("c.yaml", 3, 5), Pos("c.yaml", 4, 5)]
    assert items.items[0].at.text == "c.yaml:3:5"


@pytest.mark.parametrize(
    "text",
    ["32768", "1.10", "yes", "on", "0x10", "null", "~", "010", "1e3", "2024-01-01", "!", "-c"],
)
def test_a_plain_scalar_keeps_the_text_that_was_typed(text: str) -> None:
    node = composed(f"a: [{text}]" if text != "!" else "a: ['!']")
    assert isinstance(node, Map)
    items = node.entries["a"].value
    assert isinstance(items, Items)
    (scalar,) = items.items
    assert isinstance(scalar, Scalar)
    assert scalar.text == text


def test_quotes_are_known() -> None:
    node = composed("a: '1'\nb: 1\nc: !!str 1\nd: ''\ne:\n")
    assert isinstance(node, Map)
    scalars = {key: entry.value for key, entry in node.entries.items()}
    assert {k: s.plain for k, s in scalars.items() if isinstance(s, Scalar)} == {
        "a": False,
        "b": True,
        "c": False,
        "d": False,
        "e": True,
    }
    assert [k for k, s in scalars.items() if isinstance(s, Scalar) and s.nothing] == ["e"]


def test_anchors_aliases_and_merge_keys() -> None:
    node = composed(
        "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\nown: {<<: [*b, *m], x: 9}\nsame: *b\n"
    )
    assert isinstance(node, Map)
    own = node.entries["own"].value
    assert isinstance(own, Map)
    texts = {
        key: entry.value.text
        for key, entry in own.entries.items()
        if isinstance(entry.value, Scalar)
    }
    assert texts == {"x": "9", "y": "2", "z": "4"}
    assert node.entries["same"].value is node.entries["base"].value


def test_a_quoted_merge_key_is_a_key() -> None:
    node = composed("'<<': 1\n")
    assert isinstance(node, Map)
    assert list(node.entries) == ["<<"]


def test_nothing_at_all_is_an_empty_value() -> None:
    for text in ("", "# only a comment\n", "---\n", "\ufeff"):
        node = composed(text)
        assert isinstance(node, Scalar)
        assert node.nothing


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "a: 1\na: 2\n",
            '2:1: key "a" is there twice - the first is on line 1; YAML would keep only one of them',
        ),
        ("a:\n\tb: 1\n", "2:1: a tab in front of this - YAML is indented with spaces only"),
        ("a: @x\n", '1:4: a value cannot start with "@" - put it in quotes'),
        ("a: `x`\n", '1:4: a value cannot start with "`" - put it in quotes'),
        (
            "a: [1\nb: 2\n",
            (
                "2:2: not YAML: did not find expected ',' or ']' - a bracket or brace above is not closed "
                "(it began on line 1)"
            ),
        ),
        (
            "a: 'x\n",
            "2:1: not YAML: found unexpected end of stream - a quote above is not closed (it began on line 1)",
        ),
        (
            "a: b: c\n",
            (
                '1:5: not YAML: mapping values are not allowed in this context - a value with ": " in it needs quotes, '
                "or this line is indented too far"
            ),
        ),
        (
            "a: 1\n---\nb: 1\n",
            "2:1: a second document - keep one document in a file: take the second `---` out",
        ),
        ("a: *nope\n", "1:4: unknown anchor *nope - no &nope above this line"),
        ("a: &x [*x]\n", "1:8: *x would contain itself - point it at something else"),
        ("a: &x {b: *x}\n", "1:11: *x would contain itself - point it at something else"),
        ("a: !foo {}\n", '1:4: YAML tag "!foo" - catalogs use no tags: take it out'),
        (
            "{a: b}: c\n",
            "1:1: a key must be one word - quote it when it holds brackets, braces or ${…}",
        ),
        (
            "? [a]\n: b\n",
            "1:3: a key must be one word - quote it when it holds brackets, braces or ${…}",
        ),
        ("a: {<<: 1}\n", "1:5: << takes a mapping, or a list of mappings - write <<: *anchor"),
        ("a: \x00\n", "1:4: character U+0000 is not text - save the file as plain UTF-8 text"),
        (
            "ok: 1\na: \ud800\n",
            "2:4: character U+D800 is not text - save the file as plain UTF-8 text",
        ),
        ("[" * 100, "1:41: nested deeper than 40 levels - no key of a catalog is that deep"),
        (
            "\n".join(" " * i + "a:" for i in range(100)),
            "41:41: nested deeper than 40 levels - no key of a catalog is that deep",
        ),
        (
            "- " * 5000 + "a",
            "1:81: nested deeper than 40 levels - no key of a catalog is that deep",
        ),
        (
            "%YAML 9.1\n---\na: 1\n",
            "1:1: not YAML: found incompatible YAML document - look at the indentation and the quotes here",
        ),
    ],
)
def test_refused(text: str, problem: str) -> None:
    problems = Problems()
    compose(text, "c.yaml", problems)
    assert problems.texts() == (f"c.yaml:{problem}",)


def test_a_dropped_key_takes_its_value_along_and_reading_goes_on() -> None:
    problems = Problems()
    node = compose("[a]: {b: [c]}\nd: 1\nd: 2\n", "c.yaml", problems)
    assert isinstance(node, Map)
    assert list(node.entries) == ["d"]
    assert [text.split(":")[1] for text in problems.texts()] == ["1", "3"]


def test_a_model_given_as_a_catalog_is_not_parsed() -> None:
    problems = Problems()
    assert compose("a" * (MAX_CHARS + 1), "c.yaml", problems) is None
    assert problems.texts() == (
        f"c.yaml:1:1: {MAX_CHARS + 1} characters, more than {MAX_CHARS} - split it: a directory works too",
    )


def test_merging_that_multiplies_is_refused() -> None:
    keys = ", ".join(f"a{i}: 1" for i in range(3000))
    text = f"d: &d {{{keys}}}\n" + "".join(f"m{i}: {{<<: *d}}\n" for i in range(3000))
    problems = Problems()
    assert compose(text, "c.yaml", problems) is None
    assert problems.texts() == ("c.yaml:69:7: << brings more than 200000 keys - merge less",)


def test_problems_are_sorted_told_once_and_on_one_line() -> None:
    problems = Problems()
    problems.add(Pos("b", 1, 1), "second")
    problems.add(Pos("a", 10, 2), "ten")
    problems.add(Pos("a", 9, 20), "nine", "two\nlines")
    problems.add(Pos("b", 1, 1), "second")
    assert problems.texts() == ("a:9:20: nine - two lines", "a:10:2: ten", "b:1:1: second")


def test_after_so_many_problems_it_is_no_catalog() -> None:
    problems = Problems()
    for line in range(MAX_PROBLEMS):
        problems.add(Pos("c", line + 1), "wrong")
    with pytest.raises(GiveUp):
        problems.add(Pos("c", 10**6), "one more")
    with pytest.raises(GiveUp):
        problems.add(Pos("d"), "wrong too")
    assert len(problems.texts()) == MAX_PROBLEMS + 1
    assert problems.texts()[-1].endswith("more than 500 problems - is this a catalog at all?")


def test_position_counts_from_one() -> None:
    assert position("ab\ncd", 0, "f") == Pos("f", 1, 1)
    assert position("ab\ncd", 4, "f") == Pos("f", 2, 2)
