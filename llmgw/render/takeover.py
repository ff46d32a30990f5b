"""A takeover (`llmgw.takeover/1`) in words: what was compared, fact by fact, and what became of it (A71).

May not judge: whether it is alike, taken, or refused and why comes in the document.
"""

from __future__ import annotations

from typing import Any

from llmgw.render.page import Table

Json = dict[str, Any]


def page(document: Json) -> list[Table | str]:
    parts: list[Table | str] = []
    facts = document["facts"]
    if facts:
        parts.append(Table(("FACT", "WANTED", "RUNS WITH", ""), [_row(f) for f in facts]))
    parts.append(_outcome(document))
    if document.get("hint"):
        parts.append(f"hint: {document['hint']}")
    return parts


def _row(fact: Json) -> list[str]:
    return [fact["what"], fact["wanted"], fact["runs"], "= same" if fact["same"] else "! differs"]


def _outcome(document: Json) -> str:
    who = f"pid {document['pid']} on {document['node']}"
    what = f"{document['model']}/{document['profile']}"
    if document["already"]:
        return f"{document['why']}: nothing was done"
    if document["taken"]:
        why = f": {document['why']}" if document["why"] else ""
        said = f"{who} is {document['shard']} now, {document['state']}{why}; nothing was restarted"
        return f"{said}, and from here on it is started, drained and stopped like any other"
    if document["why"]:
        return f"{who} was not taken over as {what}: {document['why']}"
    return f"{who} would be taken over as {what}"
