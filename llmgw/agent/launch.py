"""Starting an engine: its command, its environment, its own session. The only door to subprocess in the agent.

subprocess.Popen, never asyncio's: closing its transport or cancelling the spawn kills the child (F50). Own session, so
that no Ctrl-C of the agent's terminal reaches it (F48); files, not pipes (F49). May not decide to start.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from llmgw.agent.gpu import visible
from llmgw.agent.markers import written
from llmgw.agent.placeholders import Filler
from llmgw.agent.weights import missing
from llmgw.core import mount
from llmgw.core.mount import Mount
from llmgw.core.types.messages import Gpu, Start
from llmgw.core.types.node import NodeFacts
from llmgw.core.types.record import Record
from llmgw.core.weights import absent
from llmgw.errors import LlmgwError
from llmgw.loopback import is_loopback

#: Of the agent's own environment, what an engine must not get: the service manager's, and ours (tokens among them).
REMOVED = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "INVOCATION_ID", "LLMGW_")
#: Why a program that is there and executable is not run, by what the kernel says (execve(2)).
CANNOT_RUN = {
    errno.ENOEXEC: "it is built for another machine, or is no program",
    errno.ENOENT: "the interpreter or loader that it names is not there",
    errno.EACCES: "its disk, or the interpreter that it names, may not be executed from",
}

Child = subprocess.Popen[bytes]


class LaunchError(LlmgwError):
    """The engine cannot be started here, and trying again would not help."""

    code = "launch"


class Prepared(NamedTuple):
    """Everything that starting needs; `artefact` is what identifies the model file, without secrets."""

    argv: tuple[str, ...]
    executable: str
    env: dict[str, str]
    artefact: str


class Filled(NamedTuple):
    """An order with its `${...}` filled in; `env` without what is inherited."""

    argv: tuple[str, ...]
    env: dict[str, str]
    weights: str
    artefact: str
    secrets: frozenset[str]
    mounts: tuple[Mount, ...] = ()


def prepare(record: Record, facts: NodeFacts, fill: Filler, gpus: Sequence[Gpu] = ()) -> Prepared:
    """Fill in and check; says in one sentence what is missing on this node."""
    order = filled(record, facts, fill, gpus)
    env = {**inherited(os.environ), **order.env}
    executable = _executable(order.argv[0], env, record.start, facts.node)
    return Prepared(order.argv, executable, env, order.artefact)


def filled(record: Record, facts: NodeFacts, fill: Filler, gpus: Sequence[Gpu] = ()) -> Filled:
    """As far as it is the same with and without a container. `gpus`: what is known of the node's."""
    start = record.start
    _keyless(start, facts)
    weights, artefact = fill(start.weights), fill.shown(start.weights)
    gone = missing(start, fill)
    if gone:
        raise LaunchError(absent(gone, facts.node, start.profile))
    fill.values = {**fill.values, "weights": weights}
    argv = tuple(fill(word) for word in start.command)
    wanted = {name: fill(value) for name, value in start.env.items()}
    env = {**wanted, **markers(record, facts, gpus), **written(record, artefact)}
    mounts = tuple(_mount(text, fill, facts.node) for text in start.mounts)
    secrets = frozenset({*fill.secrets, record.api_key} - {""})
    return Filled(argv, env, weights, artefact, secrets, mounts)


def _mount(text: str, fill: Filler, node: str) -> Mount:
    """Filled in it may be anything; docker would make a folder of what is not there."""
    found = mount.parse(text)
    if found is None:
        msg = f"mount {text!r} is not SOURCE:TARGET"
        raise LaunchError(msg, "see mounts in the catalog's documentation")
    source, target = fill(found.source), fill(found.target)
    for path in (source, target):
        why = mount.wrong(path)
        if why:
            msg = f"mount {text}, filled in on {node}: {path} {why}"
            raise LaunchError(
                msg, "write whole paths, in the catalog and in what it takes them from"
            )
    if not Path(source).exists():
        msg = f"mount {text}: its source is not there on {node}"
        raise LaunchError(msg, "make it, or set mounts of the profile in the catalog")
    return Mount(source, target, found.read_only)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(REMOVED)}


def markers(record: Record, facts: NodeFacts, gpus: Sequence[Gpu] = ()) -> dict[str, str]:
    """Always set; the markers are enough to adopt an engine whose journal is gone (design.md 3)."""
    start = record.start
    return {
        **visible.environment(start.gpus, gpus),
        "SPT_NOENV": "1",
        "GGML_NO_BACKTRACE": "1",
        "LLMGW_NODE_ID": facts.node_id,
        "LLMGW_NODE": facts.node,
        "LLMGW_CONTROLS": ",".join(facts.controls),
        "LLMGW_REPLICA": start.replica,
        "LLMGW_SHARD": start.shard,
        "LLMGW_INCARNATION": start.incarnation,
        "LLMGW_ATTEMPT": str(record.attempt),
        "LLMGW_MODEL": start.model,
        "LLMGW_PROFILE": start.profile,
        "LLMGW_FINGERPRINT": start.fingerprint,
        "LLMGW_PORT": str(start.port),
    }


def spawn(prepared: Prepared, log_fd: int) -> Child:
    """Start it. Its stdin is empty, its output goes to the log, and it leads a session of its own."""
    return subprocess.Popen(
        prepared.argv,
        executable=prepared.executable,
        env=prepared.env,
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def cannot_run(executable: str, start: Start, node: str, error: OSError) -> str:
    """The sentence for a spawn that failed; of what another program would mend with what to try."""
    words = CANNOT_RUN.get(error.errno or 0)
    if words is None or error.filename != executable:  # its log cannot be opened, say
        return f"{executable} cannot be started on {node}: {error.strerror}"
    said = f"engine binary {executable} cannot be executed on {node}: {error.strerror}"
    return f"{said} - {words}: {_hint(start, node)}"


def _hint(start: Start, node: str) -> str:
    where = f"engines.{start.engine}.command" if start.engine else "the profile's command"
    return f"set {where} in the catalog to a program that {node} has"


def _executable(program: str, env: Mapping[str, str], start: Start, node: str) -> str:
    hint = _hint(start, node)
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is not None:
        return found
    if "/" not in program:
        msg = f"engine binary {program} is not on the PATH of {node} - {hint}"
    elif Path(program).is_dir():
        msg = f"engine binary {program} is a directory on {node} - {hint}"
    elif Path(program).exists():
        msg = f"engine binary {program} is not executable on {node} - chmod +x it, or {hint}"
    else:
        msg = f"engine binary {program} not found on {node} - {hint}"
    raise LaunchError(msg)


def _keyless(start: Start, facts: NodeFacts) -> None:
    """Beyond loopback an engine without a key would answer anybody (contract/catalog.md)."""
    if start.insecure or is_loopback(facts.address):
        return
    if any("${api_key}" in text for text in (*start.command, *start.env.values())):
        return
    msg = (
        f"{start.shard} would answer on {facts.address} without a key - give it ${{api_key}} "
        "by its environment, or set insecure: true in its profile to mean it"
    )
    raise LaunchError(msg)
