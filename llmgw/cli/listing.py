"""What `key list` and `token list` have in common: rows as one JSON document, or as a table. May not fetch a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer

from llmgw.render.page import Table, look, show

Rows = list[dict[str, Any]]


def listed(
    context: typer.Context,
    output: str,
    what: str,
    rows: Rows,
    page: Callable[[Rows], Sequence[Table | str]],
) -> None:
    """`what`: the word for them in the document, and in its schema's name."""
    import json

    if output == "json":
        typer.echo(json.dumps({"schema": f"llmgw.{what}/1", what: rows}, indent=2))
    else:
        show(page(rows), look(context.find_root().params["_color"]))
