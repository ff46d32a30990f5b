"""A takeover (`llmgw.takeover/1`) in words: what was compared, fact by fact, and what became of it (A71).

May not judge: whether it is alike, taken, or refused and why comes in the document.
"""

from __future__ import annotations

from typing import Any

from llmgw.errors import LlmgwError
from llmgw.render.page import Table

Json = dict[str, Any]


def page(document: Json) -> list[Table | str]:
    parts: list[Table | str] = []
    facts = document["facts"]
    if facts:
        parts.append(Table(("FACT", "WANTED", "RUNS WITH", ""), [_row(f) for f in facts]))
    if refusal(document) is None:
        parts.append(_outcome(document))
    return parts


def refusal(document: Json) -> LlmgwError | None:
    """Where it was not done: the facts stand in the table, and why is an error like any other."""
    if document["taken"] or document["already"] or not document["why"]:
        return None
    msg = f"{_who(document)} was not taken over as {_as(document)}: {document['why']}"
    error = LlmgwError(msg, document.get("hint") or "")
    error.exit_code = int(document["exit_code"])
    return error


def _row(fact: Json) -> list[str]:
    return [fact["what"], fact["wanted"], fact["runs"], "= same" if fact["same"] else "! differs"]


def _outcome(document: Json) -> str:
    who = _who(document)
    if document["already"]:
        return f"{document['why']}: nothing was done"
    if document["taken"]:
        why = f": {document['why']}" if document["why"] else ""
        said = f"{who} is {document['shard']} now, {document['state']}{why}; nothing was restarted"
        return f"{said}, and from here on it is started, drained and stopped like any other"
    return f"{who} would be taken over as {_as(document)}"


def _who(document: Json) -> str:
    return f"pid {document['pid']} on {document['node']}"


def _as(document: Json) -> str:
    return f"{document['model']}/{document['profile']}"
