"""API keys (`llmgw.keys/1`) in words: one line a key. May not know a secret."""

from __future__ import annotations

from typing import Any

from llmgw.render.page import Table

HEAD = ("NAME", "MODELS", "IN FLIGHT", "PER MINUTE", "RIGHTS", "CREATED")


def page(keys: list[dict[str, Any]]) -> list[Table | str]:
    return (
        [Table(HEAD, [_row(key) for key in keys])]
        if keys
        else ["no API key: `llmgw key add NAME` makes one"]
    )


def _row(key: dict[str, Any]) -> list[str]:
    limits = key["limits"]
    return [
        key["id"],
        "all" if key["models"] is None else ",".join(key["models"]),
        *(f"{limits[name]:g}" if name in limits else "-" for name in ("in_flight", "per_minute")),
        ",".join(key["rights"]) or "-",
        key["created_at"] or "-",
    ]
