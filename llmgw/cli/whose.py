"""Whether the control that answers is that of the folder which was named, or somebody else's.

Answers for: `down` ends no control of another folder than the one it was given. May not ask control, nor end anything.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from llmgw import config
from llmgw.cli import ask
from llmgw.errors import LlmgwError

PROC = Path("/proc")


def only_of(folder: Path, peer: ask.Peer) -> None:
    """Control's folder, as it was named, and who answers. One of another box was named as such: by URL, by joining."""
    if not config.Address(ask.address(peer)[0], 0).loopback:
        return
    held = _held(peer)
    if folder.exists() and any(os.path.samestat(folder.stat(), there) for there in held.values()):
        return
    if not held and _runs(folder, peer):
        return
    where = min(held, default="another folder")
    msg = f"control at {peer.place} keeps its state in {where}, not {folder}"
    raise LlmgwError(msg, f"name it with --control {peer.url}, or drop --state-dir", status=409)


def _held(peer: ask.Peer) -> dict[str, os.stat_result]:
    """The folders that the process which listens there holds open: a control that of its lease; none we may not see.

    Each by its path as that process has it, and by what is right in every mount namespace.
    """
    from llmgw.agent.ports import pid_of

    fds = PROC / str(pid_of(ask.address(peer)[1])) / "fd"
    found = {}
    with suppress(OSError):
        for fd in fds.iterdir():
            with suppress(OSError):  # closed since
                if fd.is_dir():
                    found[str(fd.readlink())] = fd.stat()
    return found


def _runs(folder: Path, peer: ask.Peer) -> bool:
    """A control is alive there, and was reached here. The URL alone may be that of one long gone."""
    url, _ = config.pinned(config.reached(folder))
    there = ask.address(peer._replace(url=url))[:2] if url else ()
    return there == ask.address(peer)[:2] and any(map(_lives, folder.glob("*.lock")))


def _lives(lock: Path) -> bool:
    """Its holder signed with its pid (`control.lease`); under that pid there may be another program by now."""
    try:
        pid = lock.read_text().partition("\n")[0].strip()
        return pid.isdecimal() and b"llmgw" in (PROC / pid / "cmdline").read_bytes()
    except (OSError, UnicodeDecodeError):
        return False
