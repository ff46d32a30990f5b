"""`llmgw up` takes control away from no box that joined it: it listens on loopback, where none could come back.

Answers for: a refusal before anything is started or written, with who would be lost and what to run. May not ask
anybody.
"""

from __future__ import annotations

import os
from pathlib import Path

from llmgw import config
from llmgw.cli.admit import node_id
from llmgw.errors import LlmgwError


def keep(inventory: Path, agent: Path, listen: config.Address) -> None:
    """By control's own files: where it was reached when it ran last, and which nodes it will wait for."""
    from llmgw.control import reach

    urls = reach.remembered(inventory.parent)
    if not urls or os.environ.get("LLMGW_ADVERTISE", "").strip():
        return  # of one box, or before it there is a proxy that its control is told of again
    nodes = _joined(inventory, node_id(agent))
    if nodes:
        msg = (
            f"control of {inventory.parent} was reached at {config.pinned(urls[0])[0]} when it ran last, and "
            f"{', '.join(nodes)} joined it there; `llmgw up` listens on {listen} only, and they could not come back"
        )
        wider = f"`llmgw control --listen 0.0.0.0:{listen.port}`"
        forgets = ", ".join(f"`llmgw forget {node}`" for node in nodes)
        hint = (
            f"start {wider} and `llmgw agent`, each by itself; for one box again: start {wider}, stop the agent of "
            f"{', '.join(nodes)}, then {forgets}, end that control, and `llmgw up`"
        )
        raise LlmgwError(msg, hint, code="other_boxes", status=409)


def _joined(inventory: Path, mine: str) -> list[str]:
    """Other nodes than this box's own; none where the file cannot be read, of which control itself tells."""
    from llmgw.control import store

    try:
        memory = store.read_memory(inventory)
    except LlmgwError:
        return []
    return sorted(report.node for report, _ in memory.nodes if report.node_id != mine)
