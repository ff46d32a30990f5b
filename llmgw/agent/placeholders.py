"""`${name}` in a command, its environment and `weights`: filled in here, on the node (contract/catalog.md).

`${env.NAME}` and `${file.PATH}` are secrets: their values are gathered, to be taken out of whatever is shown. May not
know what an engine is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from llmgw.core.endpoint import address, asked_at
from llmgw.core.types.messages import Gpu, Start
from llmgw.core.types.node import NodeFacts
from llmgw.core.types.record import Record
from llmgw.errors import LlmgwError

HOLE = re.compile(r"\$\$|\$\{([^}]*)\}")
HIDDEN = "***"
#: Shorter values are not looked for: they would take letters out of words.
SECRET_MIN_CHARS = 4


class PlaceholderError(LlmgwError):
    """A placeholder that cannot be filled in on this node: which, and why."""

    code = "placeholder"


class Filler:
    """Fills in texts; `secrets` holds every secret value that went into one."""

    def __init__(self, values: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self.values = values
        self.environ = environ
        self.secrets: set[str] = set()

    def __call__(self, text: str) -> str:
        return HOLE.sub(self._value, text)

    def shown(self, text: str) -> str:
        """For people and for comparing: secrets are left as they were written."""
        return HOLE.sub(lambda hole: hole[0] if _secret(hole[1]) else self._value(hole), text)

    def _value(self, hole: re.Match[str]) -> str:
        name = hole[1]
        if name is None:
            return "$"
        if _secret(name):
            value = self._secret_value(name)
            self.secrets.add(value)
            return value
        if name not in self.values:
            msg = f"unknown placeholder ${{{name}}}"
            raise PlaceholderError(msg, "see the list in the catalog's documentation")
        return self.values[name]

    def _secret_value(self, name: str) -> str:
        kind, _, what = name.partition(".")
        if kind == "env":
            if what not in self.environ:
                msg = f"${{{name}}}: {what} is not set in the agent's environment"
                raise PlaceholderError(msg, "set it for the agent and restart it")
            return self.environ[what]
        try:
            return Path(what).read_text().rstrip("\n")
        except (OSError, ValueError) as e:  # not text, or no path at all
            why = e.strerror if isinstance(e, OSError) else "not text"
            msg = f"${{{name}}}: {what} cannot be read: {why}"
            raise PlaceholderError(msg, "check the path and who may read it") from e


def _secret(name: str | None) -> bool:
    return name is not None and name.startswith(("env.", "file."))


def redacted(text: str, secrets: frozenset[str]) -> str:
    """The text without secret values."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_MIN_CHARS:
            text = text.replace(secret, HIDDEN)
    return text


def fabric_address(start: Start, facts: NodeFacts) -> str:
    """Where the other ranks reach this one: its address on the group's fabric, else the node's own."""
    fabric = facts.fabrics.get(start.fabric)
    return (fabric.address if fabric else "") or facts.address


def host_of(record: Record, facts: NodeFacts) -> str:
    """Where it is asked: where it was found to listen, else where it was to."""
    return address(record.endpoint) or asked_at(facts, record.start)


def values_of(
    record: Record, facts: NodeFacts, gpus: tuple[Gpu, ...], state_dir: Path, log_path: Path
) -> dict[str, str]:
    """Every plain placeholder but `weights`, which may hold some itself."""
    start = record.start
    index = {g.uuid: str(g.index) for g in gpus}
    peers = sorted(start.peers, key=lambda p: p.rank)
    leader = peers[0] if peers else None
    meet = start.ports.get("group", 0) or (leader.group_port if leader else 0)
    return {
        "port": str(start.port),
        "host": facts.address,
        "model": start.served_name or start.model,
        "gpu_indices": ",".join(index.get(uuid, "") for uuid in start.gpus),
        "gpu_uuids": ",".join(start.gpus),
        "gpu_count": str(len(start.gpus)),
        "rank": str(start.rank),
        "nodes": str(start.world_size),
        "is_leader": "true" if start.rank == 0 else "false",
        "leader_addr": leader.address if leader else facts.address,
        "group_port": str(meet),
        "workers": ",".join(f"{p.fabric_address or p.address}:{p.port}" for p in peers if p.rank),
        "node": facts.node,
        "node_addr": facts.address,
        "fabric_addr": fabric_address(start, facts),
        "hcas": ",".join(start.hcas),
        "replica": start.replica,
        "shard": start.shard,
        "api_key": record.api_key,
        "state_dir": str(state_dir),
        "log_path": str(log_path),
        "container_name": f"llmgw-{start.replica}-{start.rank}",
    }
