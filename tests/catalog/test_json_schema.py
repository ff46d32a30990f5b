"""The schema that editors use: the file beside the example is today's, and it says what the reader does."""

from __future__ import annotations

import json
from pathlib import Path

from llmgw import catalog

ROOT = Path(__file__).parents[2]


def test_the_file_is_today_s() -> None:
    stored = json.loads((ROOT / "catalog.schema.json").read_text())
    assert stored == catalog.schema(), "llmgw catalog schema > catalog.schema.json"


def test_it_is_strict_and_says_the_defaults() -> None:
    schema = catalog.schema()
    parts = schema["$defs"]
    assert schema["$ref"] == "#/$defs/CatalogFile"
    assert all(part["additionalProperties"] is False for part in parts.values())
    assert parts["CatalogFile"]["required"] == ["version"]
    assert parts["CatalogFile"]["properties"]["version"]["enum"] == [1]
    assert parts["Scaling"]["properties"]["idle_timeout"]["default"] == "10m"
    assert parts["Profile"]["properties"]["args"]["items"]["type"] == [
        "string",
        "number",
        "boolean",
        "null",
    ]
    assert "default" not in parts["Profile"]["properties"]["args"]
    assert "default" not in parts["CatalogFile"]["properties"]["defaults"]
    assert all(key["description"] for part in parts.values() for key in part["properties"].values())
