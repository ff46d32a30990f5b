"""Node tokens as a table. May not show the words themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmgw.render.page import Table


def page(found: Sequence[dict[str, Any]]) -> list[Table | str]:
    if not found:
        return ["no node token: `llmgw token` makes one"]
    rows = [[t["name"], t["node"] or ("(all)" if t["shared"] else "(not used yet)")] for t in found]
    return [Table(("TOKEN", "NODE"), rows)]
