"""`llmgw up` lets its own agent in: it lays a node token for it where control asks for one.

Answers for: files of mode 0600 on both sides, the same token over restarts, another once it was revoked. May not make
anybody ask for tokens: an operator did, with `llmgw token new --operator` or LLMGW_TOKEN.
"""

from __future__ import annotations

import os
from pathlib import Path

from llmgw import config
from llmgw.errors import LlmgwError


def admit(control: Path, agent: Path) -> None:
    """By their state dirs, before control is started: an agent that runs already reads it when it is refused."""
    if os.environ.get("LLMGW_NODE_TOKEN", "").strip():
        return  # both parts have it from there
    if not config.token("LLMGW_TOKEN", control / "token"):
        return
    from llmgw.control import node_tokens

    file = agent / "node-token"
    word, mine = _read(file), node_id(agent)
    tokens = node_tokens.NodeTokens(control)
    made = tokens.edit(lambda there: node_tokens.for_up(there, word, mine))
    if made.token != word:
        _write(file, made.token)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""  # it is written anew


def node_id(agent: Path) -> str:
    """Whose this state dir is, "" for nobody's."""
    import json

    from llmgw.agent.identity import FILE

    try:
        return str(json.loads((agent / FILE).read_bytes())["node_id"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # nobody has lived there yet, or another is to


def _write(file: Path, word: str) -> None:
    aside = file.with_suffix(".new")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)  # left by one that was killed
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as out:
            out.write(f"{word}\n")
            out.flush()
            os.fsync(fd)
        aside.replace(file)
    except OSError as e:
        msg = f"cannot write the agent's token: {file}: {(e.strerror or str(e)).lower()}"
        raise LlmgwError(msg, "choose a folder of yours: --state-dir DIR") from e
