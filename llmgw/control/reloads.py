"""Another catalog for a running control: from disk, or one that an operator sends and has looked at (A49, A58).

Answers for: one step from the old one to the new one with what he confirmed of it. It may not judge a change.
"""

from __future__ import annotations

import asyncio
from typing import Any

from llmgw.control.crash import crash
from llmgw.control.looks import fresh_plan
from llmgw.control.loop import Control
from llmgw.control.settings import DIGEST
from llmgw.control.verbs import leading
from llmgw.core.adopt.survey import survey
from llmgw.core.names import plain
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.state import CatalogLoaded, Confirmed
from llmgw.errors import CatalogError, LlmgwError, UsageError
from llmgw.wire.plan import plan_digest

Json = dict[str, Any]


async def reload(
    control: Control,
    *,
    text: str | None = None,
    digest: str = "",
    confirm: bool = False,
    asked: bool = False,
) -> Json:
    """Take the catalog on disk, or put `text` there first; one with problems changes nothing (CatalogError).

    `digest`: of the plan that was shown for it, refused where that is another one by now. `confirm`: the operator has
    seen whom that plan would disturb, so the blast-radius guard does not count them. `asked`: who waits for the answer
    believes it; a signal may reach a control that does not lead.
    """
    if confirm and not digest:
        msg = "confirm goes with the digest of the plan that was looked at"
        raise UsageError(msg, "`llmgw catalog apply` shows it and asks")
    if digest and not DIGEST.fullmatch(digest):
        msg = f"{plain(digest)!r} is no digest"
        raise UsageError(msg, "that of the plan for it: `llmgw adopt --dry-run --catalog FILE`")

    try:
        # In a thread: a long catalog takes seconds to read, and control is deaf that long.
        new, sources = await asyncio.to_thread(control.catalogs.read, text)
    except CatalogError as e:
        if text is None:
            control.catalogs.refused(e, "the one in use stays")
        raise

    def fold(now: float) -> Json:
        if asked:
            leading(control)
        if digest:
            _as_shown(control, new, digest, now)
        kept = "" if text is None else control.catalogs.write(text)
        changes = control.catalogs.use(new, sources)
        control.keeper.sources = control.catalogs.sources
        control.fold(CatalogLoaded(new), now)
        crash("catalog_swapped")
        if confirm:
            control.fold(Confirmed(_ends(control)), now)
        return {"changes": changes, "old": kept or None}

    done: Json = await control.ask(fold)
    about = {"path": str(control.catalogs.path), "version": new.digest[:12]}
    return about | done | {"paused": control.state.paused or None}


def _as_shown(control: Control, new: Catalog, digest: str, now: float) -> None:
    found = plan_digest(fresh_plan(control, new, now)[0])
    if found != digest:
        msg = f"the plan for it is {found} by now, not {plain(digest)}; nothing was changed"
        raise LlmgwError(msg, "look at it again", code="other_digest", status=409)


def _ends(control: Control) -> frozenset[str]:
    """All that the new catalog makes unclaimed, lost or drifted: what its plan showed, and later steps of its rolls."""
    found = survey(control.state).replicas
    return frozenset(r.incarnation for r in found if not r.claimed or not r.kept or r.drift)
