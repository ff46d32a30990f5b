"""What a request gives: a number, a JSON object, the text of a catalog; or one clear refusal. May not touch control."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request

from llmgw import catalog
from llmgw.core.types.catalog import Catalog
from llmgw.errors import UsageError


def number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        msg = f"{name}={text[:40]!r} is not a number"
        raise UsageError(msg) from None


def object_of(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        msg = f"the body is no JSON object: {e}"
        raise UsageError(msg) from e


def shown(given: dict[str, Any]) -> dict[str, Any]:
    """What the operator has looked at and said of it."""
    return {"digest": str(given.get("digest") or ""), "confirm": given.get("confirm") is True}


def one_text(posted: Any) -> str:
    """`{"catalog": text}`, or `{"catalog": {file: text}}` with one file: control's own file is one."""
    texts = list(posted.values()) if isinstance(posted, dict) else [posted]
    if len(texts) != 1 or not isinstance(texts[0], str):
        msg = "catalog is not one text"
        raise UsageError(msg, 'send {"catalog": TEXT}; control has one catalog file')
    return texts[0]


def posted_catalog(data: bytes) -> Catalog:
    """`{"catalog": {file: text}}` or `{"catalog": text}`; anything else is a catalog itself, JSON being YAML."""
    given = object_of(data)
    posted = given.get("catalog")
    if posted is None:
        return catalog.loads(data.decode(), "the posted catalog")
    if isinstance(posted, str):
        return catalog.loads(posted, "the posted catalog")
    try:
        return catalog.load_sources(msgspec.convert(posted, dict[str, str]))
    except msgspec.ValidationError as e:
        msg = f"catalog is neither a text nor texts by their file's name: {e}"
        raise UsageError(msg) from e
