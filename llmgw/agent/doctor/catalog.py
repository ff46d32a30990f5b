"""What the catalog names and this node would need: programs, weights, container runtimes.

A node need not be able to run everything, so nothing here fails. May not expand secrets nor load anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from llmgw.agent.doctor.look import Check, Node, some, there
from llmgw.core.types.catalog import Profile

_PATHS = ("/", "./", "../", "~")


def catalog(node: Node) -> Iterator[Check]:
    if isinstance(node.catalog, Check):
        yield node.catalog
        return
    profiles = [(m.name, p) for m in node.catalog.models.values() for p in m.profiles]
    yield _programs(node, [p for _, p in profiles if p.launcher == "exec"])
    yield _weights(node, profiles)
    runtimes = sorted({p.launcher for _, p in profiles} - {"exec"})
    path = _path(node)
    for runtime in runtimes:
        where = shutil.which(runtime, path=path)
        if where:
            yield Check("ok", runtime, where)
        else:
            fact = f"{runtime} is not on the PATH ({path}), and the catalog uses it"
            yield Check(
                "warn", runtime, fact, f"install {runtime}, or keep such profiles off this node"
            )


def _programs(node: Node, profiles: list[Profile]) -> Check:
    """By the PATH that engines get: the running agent's."""
    path = _path(node)
    wanted: dict[str, list[str]] = {}
    for profile in profiles:
        for command in (profile.command, profile.worker_command):
            if command and "${" not in command[0]:
                wanted.setdefault(command[0], []).append(profile.engine or profile.name)
    if not wanted:
        return Check("skip", "engines", "the catalog names no program that could be looked for")
    lacking = {w: by for w, by in wanted.items() if not shutil.which(w, path=path)}
    if lacking:
        names = [f"{w} ({', '.join(sorted(set(by)))})" for w, by in sorted(lacking.items())]
        fact = f"{some(names)}: no such program on the PATH ({path})"
        return Check(
            "warn",
            "engines",
            fact,
            "install it, name its path in engines.NAME.command, or keep it off",
        )
    return Check("ok", "engines", f"{some(sorted(wanted))} found")


def _path(node: Node) -> str:
    for pair in node.text(f"proc/{node.agent() or 'self'}/environ").split("\0"):
        name, _, value = pair.partition("=")
        if name == "PATH":
            return value
    return os.defpath


def _weights(node: Node, profiles: list[tuple[str, Profile]]) -> Check:
    """Only what looks like a path is looked for: `org/name` is a repository's name."""
    said = {f"{m}/{p.name}": p.weights_on(node.name) for m, p in profiles}
    wanted = {n: w for n, w in said.items() if w.startswith(_PATHS) and "${" not in w}
    if not wanted:
        return Check("skip", "weights", "the catalog names no file of weights")
    lacking = [f"{w} ({n})" for n, w in sorted(wanted.items()) if not there(Path(w))]
    if lacking:
        fact = f"{some(lacking)} not found on {node.name}"
        return Check(
            "warn",
            "weights",
            fact,
            "copy it here, or keep the profile off this node (select, pool)",
        )
    count = len(wanted)
    every = "the file" if count == 1 else f"all {count} files"
    are = "is" if count == 1 else "are"
    return Check("ok", "weights", f"{every} that the catalog names {are} here")
