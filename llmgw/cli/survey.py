"""The fleet's picture without a running control, out of report files or from the agents; and the plan made of it.

Answers for: the same functions as control's (`fresh`, `decide`, `plan_document`), fed from elsewhere. May not change
anything: no session, no write, and the inventory is only read (A53).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from llmgw.cli import ask
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types.messages import NodeReport
from llmgw.core.types.state import State
from llmgw.errors import EXIT_UNKNOWN, LlmgwError, UsageError
from llmgw.wire import decode_reports, report_of
from llmgw.wire.plan import plan_document

AGENTS_AT_ONCE = 16
NONE: Mapping[str, str] = {}


class Found(NamedTuple):
    """Reports that came in, and what could not be asked, in words."""

    reports: tuple[NodeReport, ...]
    notes: tuple[str, ...] = ()
    #: whole: every node there may be was among those asked
    whole: bool = True
    #: nodes that could not be asked: their agents gave no address
    unasked: frozenset[str] = frozenset()


def from_files(files: Sequence[Path]) -> Found:
    found: list[NodeReport] = []
    for file in files:
        try:
            found += decode_reports(file.read_bytes())
        except OSError as e:
            msg = f"cannot read the report {file}: {(e.strerror or str(e)).lower()}"
            raise UsageError(msg, "a report is what an agent answers at /v1/inventory") from e
        except LlmgwError as e:
            msg = f"{file}: {e.message}"
            raise LlmgwError(
                msg, e.hint or "a report is what an agent answers at /v1/inventory"
            ) from e
    return Found(tuple(found))


def from_agents(memory: Memory, local_url: str, tokens: Mapping[str, str] = NONE) -> Found:
    """Every node of the last picture by its `inspect` address; one that has none is on loopback: this box's agent.

    Of several without one only that which answers here was asked. With no picture at all only this box's agent can
    be asked, and that is not the whole fleet. With one, nobody who answers is an answer too: all is held (A55).
    `tokens`: by node id, where each has its own.
    """
    reports = [report for report, _ in memory.nodes]
    own = {_inspect(r): tokens.get(r.node_id, "") for r in reports if r.inspect}
    urls = {_inspect(r) or local_url for r in reports}
    asked = sorted(urls) or [local_url]
    with ThreadPoolExecutor(AGENTS_AT_ONCE) as pool:
        answers = list(pool.map(_inventory, asked, [own.get(url, "") for url in asked]))
    found = tuple(a for a in answers if isinstance(a, NodeReport))
    refused = [a for a in answers if isinstance(a, LlmgwError)]
    wrong = [e for e in refused if e.exit_code != EXIT_UNKNOWN]
    if not found and (wrong or not memory.nodes):
        raise (wrong or refused)[-1]
    heard = {r.node for r in found}
    here = any(
        isinstance(a, NodeReport) for a, url in zip(answers, asked, strict=True) if url == local_url
    )
    nowhere = {r.node for r, _ in memory.nodes if not r.inspect} if here else set()
    notes = tuple(e.message for e in refused)
    return Found(found, notes, whole=bool(urls), unasked=frozenset(nowhere - heard))


def _inspect(report: NodeReport) -> str:
    """As `config.pinned` takes it; "" where it gave no address."""
    pin = f"#{report.inspect_pin}" if report.inspect_pin else ""
    return f"{report.inspect}{pin}" if report.inspect else ""


def _inventory(url: str, token: str) -> NodeReport | LlmgwError:
    try:
        return report_of(ask.get(ask.agent(url, token), "/v1/inventory"))
    except LlmgwError as e:
        return e


def plan(state: State, found: Found, *, source: str, allow_partial: bool) -> dict[str, Any]:
    """What the first pass after settling would decide, as a document (A52)."""
    document = plan_document(
        decide(state, 0.0),
        source=source,
        generated_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        allow_partial=allow_partial,
        nodes=state.nodes,
        catalog=state.catalog,
    )
    _unasked(document, found.unasked)
    if not found.whole:
        document["complete"] = False
        document["warnings"].append("only this box's agent was asked: the inventory names no node")
        if not allow_partial:
            document["exit_code"] = EXIT_UNKNOWN
    return document


def _unasked(document: dict[str, Any], nodes: frozenset[str]) -> None:
    """Who was not asked cannot be blamed for his silence; what is held is the same."""
    for node in document["nodes"]:
        if node["node"] in nodes:
            node["error"] = "not asked: its agent gave no address to ask at (`inspect` is empty)"
    for shard in document["shards"]:
        if shard["node"] in nodes and shard["reason"] == "node_silent":
            shard["why"] = f"{shard['node']} was not asked; it is left alone"
