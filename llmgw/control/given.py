"""What a request gives: a number, a JSON object, the text of a catalog; or one clear refusal. May not touch control."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.requests import Request

from llmgw import catalog
from llmgw.core.types.catalog import Catalog
from llmgw.errors import UsageError

_NUMBER = re.compile(r"-?[0-9]{1,18}")


def number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is not None and not _NUMBER.fullmatch(text):
        msg = f"{name}={text[:40]!r} is not a number"
        raise UsageError(msg, "a whole one, of 18 digits at most")
    return default if text is None else int(text)


def switch(request: Request, name: str) -> bool:
    """A yes or no in the query: what is neither is refused, for it would be a no that nobody gave."""
    said = request.query_params.get(name, "0")
    if said not in ("0", "false", "1", "true"):
        msg = f"{name}={said[:40]!r} is neither yes nor no"
        raise UsageError(msg, f"{name}=1 or {name}=0")
    return said in ("1", "true")


def object_of(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
        msg = f"the body is no JSON object: {e}"
        raise UsageError(msg) from e


def flag(given: dict[str, Any], name: str) -> bool:
    """Null is as good as not said. A "true" in quotes is refused: as a no it could mean the opposite of a dry run."""
    said = given.get(name)
    if said is not None and not isinstance(said, bool):
        msg = f"{name} is neither true nor false"
        raise UsageError(msg, f'without quotes: {{"{name}": true}}')
    return said is True


def text(given: dict[str, Any], name: str) -> str:
    said = given.get(name)
    if said is not None and not isinstance(said, str):
        msg = f"{name} is not a text"
        raise UsageError(msg, f'in quotes: {{"{name}": "…"}}')
    return said or ""


def whole(given: dict[str, Any], name: str) -> Any:
    """As it was given, but 7.0 as 7: to JSON they are one number (JSON Schema 2020-12, 4.2.3). Judges nothing."""
    said = given.get(name)
    return int(said) if isinstance(said, float) and said.is_integer() else said


def shown(given: dict[str, Any]) -> dict[str, Any]:
    """What the operator has looked at and said of it."""
    return {"digest": text(given, "digest"), "confirm": flag(given, "confirm")}


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
