"""Writes the JSON Schema of every document that `-o json` prints.

Answers for: docs/schemas/*.json. Further fields are allowed in them, for changes are additive; which fields there are
today is declared in scripts/documents.

    python -m scripts.schemas [--check]
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from scripts.documents import DOCUMENTS
from scripts.documents.base import Document
from scripts.generated import ROOT, settle

FOLDER = ROOT / "docs" / "schemas"


def schema(name: str, of: type[Document]) -> dict[str, Any]:
    """Self-contained, with the document itself at the top."""
    found = msgspec.json.schema(of)
    parts: dict[str, Any] = found.pop("$defs", {})
    for part in parts.values():
        part.pop("additionalProperties", None)
        if len(part.get("description", "").split("\n\n")) > 1 or part.get("description") == "":
            part.pop("description", None)
    whole = parts.pop(of.__name__)
    whole["properties"]["schema"] = {"const": name}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    return {**head, **whole, **({"$defs": parts} if parts else {})}


def files() -> dict[Path, str]:
    return {
        FOLDER / f"{name.replace('/', '-')}.json": json.dumps(schema(name, of), indent=2) + "\n"
        for name, of in sorted(DOCUMENTS.items())
    }


if __name__ == "__main__":
    sys.exit(settle(files(), sys.argv[1:]))
