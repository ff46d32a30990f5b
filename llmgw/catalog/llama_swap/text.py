"""Between text and data: the file with the line of each key, and the catalog as a text that people go on editing.

May not know a key. CatalogError: it is no YAML, or no mapping.
"""

from __future__ import annotations

from typing import Any

import yaml
from typing_extensions import override

from llmgw.catalog.llama_swap.shape import check
from llmgw.errors import CatalogError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 20
#: Lists and mappings that are short enough for one line are written so.
_WIDTH = 110


def read(name: str, text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The file as plain data, and the line of each key by its dotted path."""
    try:
        tree = yaml.compose(text, Loader=_LOADER)
        data = yaml.load(text, Loader=_LOADER)  # noqa: S506 - one of the safe loaders
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise CatalogError((f"{where}: {getattr(e, 'problem', None) or 'cannot be read'}",)) from e
    if not isinstance(data, dict):
        raise CatalogError((f"{name}:1:1: is no llama-swap configuration: a mapping is expected",))
    check(name, data)
    if why := _no_models(name, data):
        raise CatalogError((f"{name}: is no llama-swap configuration: {why}",))
    lines: dict[str, int] = {}
    _walk(tree, "", lines, 0)
    return data, lines


def _no_models(name: str, data: dict[str, Any]) -> str:
    """Why there is nothing to take over, with what to do; "" where there is."""
    models = data.get("models") or {}
    if any((model or {}).get("cmd") for model in models.values()):
        return ""
    if any((model or {}).get("profiles") for model in models.values()):
        already = "it is a catalog of llmgw already"
        return f"its models have profiles - {already}: llmgw catalog check {name}"
    has = f"none of its {len(models)} models has a cmd" if models else "it has no models"
    keys = ", ".join(map(str, [*data][:8])) or "nothing"
    return f"{has} (it has {keys}) - name the file with models: and a cmd for each of them"


def _walk(node: Any, path: str, lines: dict[str, int], depth: int) -> None:
    if not isinstance(node, yaml.MappingNode) or depth > _MAX_DEPTH:
        return
    for key, value in node.value:
        at = f"{path}.{key.value}" if path else str(key.value)
        lines[at] = key.start_mark.line + 1
        _walk(value, at, lines, depth + 1)


class _Dumper(yaml.SafeDumper):
    """Lists of words in one line, as people write commands."""

    @override
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # noqa: FBT003


def _sequence(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    flat = all(not isinstance(x, dict | list) for x in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)


def _mapping(dumper: yaml.SafeDumper, data: dict[str, Any]) -> yaml.Node:
    flat = len(str(data)) < _WIDTH // 2 and all(
        not isinstance(x, dict | list) for x in data.values()
    )
    return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=flat)


_Dumper.add_representer(list, _sequence)
_Dumper.add_representer(dict, _mapping)


def written(catalog: dict[str, Any], head: str) -> str:
    """`head` goes in front, as comments."""
    body = yaml.dump(catalog, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    top = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return f"{top}{body.rstrip()}\n"
