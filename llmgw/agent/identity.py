"""Who this agent is: a random node id in the state dir, bound to the machine; one agent per state dir.

The lock is the proof that the agent before is dead (F51, F52). A cloned disk brings its id along: another machine-id
makes a new node id, and the other machine's records are put aside, never adopted (F53). The id is kept twice: engines
carry it, and a new one would leave them unmanaged: with both gone the caller may know it by them (lost.py). May not
look at any process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import structlog

from llmgw import wire
from llmgw.agent import crash
from llmgw.agent.disk import write_durably
from llmgw.core.supervise.claims import ID
from llmgw.errors import LlmgwError

log = structlog.get_logger()
MACHINE_ID = Path("/etc/machine-id")
FILE = "identity.json"
COPY = "node.copy"


class StateDirError(LlmgwError):
    """The state dir cannot be used: who holds it, or what the system said."""

    code = "state_dir"


class Lock:
    """Of the folder, and of the node id: a copy of the folder on this host would sweep the same engines."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._name: socket.socket | None = None

    def claim(self, node_id: str, state_dir: Path) -> None:
        """An abstract socket is gone with its process, however that ended."""
        self._name = socket.socket(socket.AF_UNIX)
        try:
            self._name.bind(f"\0{claimed_as(node_id)}")
        except OSError as e:
            self.close()
            if e.errno != errno.EADDRINUSE:
                raise
            msg = f"state dir {state_dir} is a copy: another agent with node id {node_id} runs on this host"
            hint = f"stop that one first, or remove {state_dir} to make a new node of it"
            raise StateDirError(msg, hint) from None

    def close(self) -> None:
        self._file.close()
        if self._name is not None:
            self._name.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Identity(NamedTuple):
    """`boot_before`: the boot in which the last agent here ran; `lock` is held while it is open."""

    node_id: str
    instance: str
    boot_before: str
    machine_id: str
    state_dir: Path
    lock: Lock

    def remember_boot(self, boot_id: str) -> str:
        """Called once the records of earlier boots are settled: from here on unreadable ones are of this boot.

        Why it could not be written, or "": a full disk must not keep an agent from its engines. The next start settles
        the earlier boots' records once more, which changes nothing.
        """
        if boot_id == self.boot_before:
            return ""
        try:
            _write(self.state_dir, self.node_id, self.machine_id, boot_id)
        except OSError as e:
            return f"{self.state_dir / FILE} could not be written: {e.strerror or e}"
        return ""


def claimed_as(node_id: str) -> str:
    """The name of the abstract socket that a living agent holds."""
    return f"llmgw-agent-{node_id}"


def open_state_dir(
    state_dir: Path, machine_id: str | None = None, former: Callable[[], str] = str
) -> Identity:
    """Create and lock the state dir, and say who we are. `former`: asked for the id where no file tells it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _locked(state_dir)
        machine_id = _machine_id() if machine_id is None else machine_id
        try:
            return _identity(state_dir, machine_id, lock, former)
        except BaseException:
            lock.close()
            raise
    except OSError as e:
        msg = f"state dir {state_dir} cannot be used: {e.strerror or e}"
        hint = "make it writable for the user who runs the agent, or give --state-dir"
        raise StateDirError(msg, hint) from e


def _locked(state_dir: Path) -> Lock:
    # For the owner only: who may open it may lock it, and keep the agent from starting.
    fd = os.open(state_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    file = os.fdopen(fd, "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        msg = f"state dir {state_dir} is in use by another agent, pid {holder}"
        hint = "stop that one first, or give this one its own --state-dir"
        raise StateDirError(msg, hint) from None
    # Over what is there: an emptied file may find no room again on a full disk.
    os.ftruncate(fd, os.pwrite(fd, f"{os.getpid()}\n".encode(), 0))
    crash.here("after-lock")
    return Lock(file)


def _identity(state_dir: Path, machine_id: str, lock: Lock, former: Callable[[], str]) -> Identity:
    first, copy = _read(state_dir / FILE), _read(state_dir / COPY)
    known = first or copy
    node_id = known.get("node_id", "")
    made_on = known.get("machine_id", "")
    machine_id = machine_id or made_on
    # A machine that has no id, or had none then, is not another one: its engines would be left unmanaged.
    if node_id and made_on and made_on != machine_id:
        aside = state_dir / f"records.of-{node_id}"
        log.warning(
            "this state dir was made on another machine (a cloned disk?): its records are not adopted",
            node_id=node_id,
            records=str(aside),
        )
        if (state_dir / "records").exists():
            (state_dir / "records").rename(aside)
        (state_dir / "token.json").unlink(missing_ok=True)
        node_id = ""
    if not first and (state_dir / FILE).exists():
        (state_dir / FILE).replace(state_dir / "identity.unreadable")
    if not node_id:
        # A cloned disk is no lost folder: what runs here is another node's, or nobody's.
        node_id = ("" if known else former()) or secrets.token_hex(16)
        lock.claim(node_id, state_dir)
        _write(state_dir, node_id, machine_id, "")
        return Identity(node_id, str(uuid.uuid4()), "", machine_id, state_dir, lock)
    lock.claim(node_id, state_dir)
    if first != copy or made_on != machine_id:
        log.info("the node id is written twice again", node_id=node_id)
        with contextlib.suppress(OSError):  # a full disk: the next start finds the one that is left
            _write(state_dir, node_id, machine_id, known["boot_id"])
    boot_before = known.get("boot_id", "")
    return Identity(node_id, str(uuid.uuid4()), boot_before, machine_id, state_dir, lock)


def _read(path: Path) -> dict[str, str]:
    """{} where there is none, or where a power cut left no sense in it. The id becomes a name: it is looked at."""
    try:
        plain = wire.decode(path.read_bytes(), dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except wire.WireError as e:
        log.warning("an identity file is unreadable", path=str(path), error=str(e))
        return {}
    # What a newer agent writes besides must not make this a new node (F56).
    known = {k: v for k, v in plain.items() if isinstance(v, str)}
    if not ID.fullmatch(known.get("node_id", "")):
        log.warning("an identity file has no node id", path=str(path))
        return {}
    return {name: known.get(name, "") for name in ("node_id", "machine_id", "boot_id")}


def node_id_in(path: Path) -> str:
    """Of an identity file; "" where it tells none, or may not be read."""
    try:
        return _read(path).get("node_id", "")
    except OSError:
        return ""


def _write(state_dir: Path, node_id: str, machine_id: str, boot_id: str) -> None:
    known = wire.encode({"node_id": node_id, "machine_id": machine_id, "boot_id": boot_id})
    crash.here("before-identity")
    write_durably(state_dir / FILE, known)
    crash.here("after-identity")
    copy = state_dir / COPY
    try:
        temp = copy.with_name(f"{copy.name}.new")
        temp.write_bytes(known)  # not synced: a power cut spoils one of the two at most
        temp.replace(copy)
    except OSError as e:
        log.warning("the copy of the identity file cannot be written", path=str(copy), error=str(e))


def _machine_id() -> str:
    return MACHINE_ID.read_text().strip() if MACHINE_ID.exists() else ""
