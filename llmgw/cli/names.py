"""Names that a shell completes: models, replicas, nodes, as control has them now.

Answers for: quick, and silent when nobody answers: a word that is not completed is better than a prompt that hangs.
May not ask for more than one document.
"""

from __future__ import annotations

from typing import Any

from llmgw import config
from llmgw.cli import ask
from llmgw.errors import LlmgwError

#: Longer, and typing stutters.
PATIENCE_S = 0.4
Json = dict[str, Any]


def models(incomplete: str) -> list[str]:
    return _begun(incomplete, _models(_status()))


def replicas(incomplete: str) -> list[str]:
    return _begun(incomplete, _replicas(_status()))


def anything(incomplete: str) -> list[str]:
    """What `status NAME` and `stop NAME` take."""
    found = _status()
    return _begun(incomplete, [*_models(found), *_replicas(found), *_nodes(found)])


def running(incomplete: str) -> list[str]:
    found = _status()
    return _begun(incomplete, [*_models(found), *_replicas(found)])


def nodes(incomplete: str) -> list[str]:
    return _begun(incomplete, _nodes(_status()))


def places(incomplete: str) -> list[str]:
    """Nodes; after the slash their GPUs."""
    found = _status()
    gpus = [f"{n['node']}/{g['index']}" for n in found.get("nodes", ()) for g in n["gpus"]]
    return _begun(incomplete, gpus if "/" in incomplete else _nodes(found))


def digest(incomplete: str) -> list[str]:
    return _begun(incomplete, [_status().get("confirm") or ""])


def tokens(incomplete: str) -> list[str]:
    return _begun(incomplete, [t["name"] for t in _asked("/api/v1/tokens").get("tokens", ())])


def keys(incomplete: str) -> list[str]:
    return _begun(incomplete, [k["id"] for k in _asked("/api/v1/keys").get("keys", ())])


def _models(found: Json) -> list[str]:
    return [
        name
        for m in found.get("models", ())
        for name in (m["name"], *m["aliases"])
        if "*" not in name
    ]


def _replicas(found: Json) -> list[str]:
    return [r["replica"] for r in found.get("replicas", ())]


def _nodes(found: Json) -> list[str]:
    return [n["node"] for n in found.get("nodes", ())]


def _begun(incomplete: str, names: list[str]) -> list[str]:
    return sorted({name for name in names if name and name.startswith(incomplete)})


def _status() -> Json:
    return _asked("/api/v1/status")


def _asked(path: str) -> Json:
    """The first control that is named; {} for whatever goes wrong, also for an answer of another shape."""
    try:
        found = ask.get(ask.control(config.Given({}))[0], path, timeout_s=PATIENCE_S)
    except (LlmgwError, OSError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}
