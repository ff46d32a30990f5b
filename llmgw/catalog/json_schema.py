"""JSON Schema of the catalog file, from the declaration that the reader walks: editors complete and check by it."""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.catalog import keys


def schema() -> dict[str, Any]:
    """Draft 7, which every YAML editor knows; `$ref`s point into `$defs`."""
    document = msgspec.json.schema(keys.CatalogFile)
    _tidy(document)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "llmgw catalog",
        "description": "The models a fleet serves, and the ways to run them.",
        **document,
    }


def _tidy(node: Any) -> None:
    """Without defaults that say nothing: empty ones, and whole sections (each of their keys has its own)."""
    if isinstance(node, dict):
        if node.get("default", 0) in ("", [], (), {}) or isinstance(node.get("default"), dict):
            del node["default"]
        for inner in node.values():
            _tidy(inner)
    elif isinstance(node, list):
        for inner in node:
            _tidy(inner)
