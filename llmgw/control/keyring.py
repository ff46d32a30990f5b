"""`POST /api/v1/keys`: an operator makes and revokes API keys of clients.

Answers for: kept on disk before the key is told, in the next route table at once, told as an event without the secret.
"""

from __future__ import annotations

from typing import Any

from llmgw.control import keys
from llmgw.control.loop import Control
from llmgw.control.verbs import at, kept, leading

Json = dict[str, Any]


async def add(control: Control, want: keys.Wanted) -> Json:
    """`key` is the secret: nobody can show it again."""

    def fold(now: float) -> Json:  # noqa: ARG001 - a turn's form
        leading(control)
        fresh, secret = keys.added(control.keeper.keys, want, at(control))
        control.keeper.keys = fresh
        key = fresh[want.name]
        control.story.tell("key_added", f"an operator made the API key {key.id}", key=key.id)
        unmatched = keys.unmatched(key, control.catalogs.catalog)
        return {"name": key.id, "key": secret, "unmatched": unmatched}

    said: Json = await control.ask(fold)
    return said | kept(control)


async def revoke(control: Control, name: str, want: keys.Revoking) -> Json:
    """Gateways refuse it as soon as they have the next table; what it began runs to its end."""

    def fold(now: float) -> Json:  # noqa: ARG001 - a turn's form
        leading(control)
        there = control.keeper.keys
        control.keeper.keys = keys.without(there, name, last=want.last)
        control.story.tell("key_revoked", f"an operator revoked the API key {name}", key=name)
        return {"revoked": name, "left": len(there) - 1}

    said: Json = await control.ask(fold)
    return said | kept(control)
