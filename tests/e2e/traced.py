"""What a command of ours asked of the kernel, as strace saw it; and what a folder looks like before and after.

Answers for: telling reading from changing, call by call. It may not know which command it was.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.fleet import Fleet

#: Calls that change a file, a folder or their attributes, whatever their arguments are.
CHANGES = re.compile(
    "creat|(un)?link(at)?|rename(at2?)?|mkdir(at)?|rmdir|symlink(at)?|f?chmod(at2?)?|[fl]?chown(at)?|utimes?|futimesat"
    "|utimensat|f?truncate|fallocate|mknod(at)?|[lf]?(set|remove)xattr|u?mount2?|flock|f(data)?sync|memfd_create"
)
SERVES = re.compile("bind|listen|accept4?")
PROCESSES = re.compile("execve(at)?|v?fork")
OPENS = re.compile("open(at2?)?")
WRITES = re.compile("p?writev?2?|pwrite64|sendfile|copy_file_range|splice")
#: Its own output, and what it says to those it asks.
_SAID = re.compile(r"[12]<|\d+<(pipe|socket|TCP|anon_inode):?")
_FOR_WRITING = re.compile(r"\bO_(WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b")
_CALL = re.compile(r"(\d+) +(\w+)\((.*)")
_PEER = re.compile(r'sin_port=htons\((\d+)\), sin_addr=inet_addr\("([^"]+)"\)')


class Traced(NamedTuple):
    returncode: int
    stdout: str
    stderr: str
    #: addresses that were connected to, in order, each once
    peers: list[str]
    #: what it did that was no reading, as strace wrote it
    changes: list[str]
    opened: list[str]


def traced(folder: Path, env: dict[str, str], *words: object) -> Traced:
    """`llmgw WORDS` under strace. Python's cache of compiled modules is not the command's doing: it is off."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace (the package is called strace) to see every call")
    env = {"PYTHONDONTWRITEBYTECODE": "1"} | env
    command = [sys.executable, "-m", "llmgw", *map(str, words)]
    log = folder / "strace.txt"
    look = [strace, "-f", "-y", "-qq", "-e", "signal=none", "-s", "64", "-o", str(log)]
    look += ["-e", "trace=%file,%desc,%network,%process", "--", *command]
    done = subprocess.run(look, env=env, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr.lower() and not log.read_text().strip():
        pytest.skip(f"strace may not look at a process here: {done.stderr.strip()}")
    calls = [m.groups() for line in log.read_text().splitlines() if (m := _CALL.match(line))]
    return Traced(
        done.returncode,
        done.stdout,
        done.stderr,
        list(
            dict.fromkeys(
                f"{h}:{p}" for _, c, a in calls if c == "connect" for p, h in _PEER.findall(a)
            )
        ),
        [
            f"{call}({rest}"
            for n, (_, call, rest) in enumerate(calls)
            if _changes(call, rest, first=n == 0)
        ],
        [name for _, call, rest in calls if OPENS.fullmatch(call) for name in _named(rest)],
    )


def _named(rest: str) -> list[str]:
    return re.findall(r'"([^"]*)"', rest)[:1]


def _changes(call: str, rest: str, *, first: bool) -> bool:
    """Whether this is more than a look. Its own output, and words to those it asks, are not."""
    if CHANGES.fullmatch(call) or SERVES.fullmatch(call):
        return True
    if PROCESSES.fullmatch(call):
        return not first
    if OPENS.fullmatch(call):
        return bool(_FOR_WRITING.search(rest))
    if WRITES.fullmatch(call):
        return not re.match(r"[12]<|\d+<(pipe|socket|TCP|anon_inode):?", rest)
    if call == "connect":
        return "AF_INET" not in rest
    if call == "fcntl":
        return "F_WRLCK" in rest
    if call == "mmap":
        return "MAP_SHARED" in rest and "PROT_WRITE" in rest
    return call == "ioctl" and "nvidia" in rest


def snapshot(*folders: Path) -> dict[str, tuple[int, int, int]]:
    """Size, time of the last change and mode of everything there; logs of what runs grow by themselves."""
    found = {}
    for folder in folders:
        for path in sorted([folder, *folder.rglob("*")]):
            if path.suffix != ".log" and path.exists():
                now = path.lstat()
                size = now.st_size if path.is_file() else 0
                found[str(path)] = (size, now.st_mtime_ns, now.st_mode)
    return found


def settled_down(fleet: Fleet) -> None:
    """Until nothing has changed for a while: what a start leads to is written down by itself."""
    last, since = snapshot(fleet.folder), time.monotonic()
    give_up = since + 60
    while time.monotonic() - since < 2.5:
        assert time.monotonic() < give_up, "the folders of a fleet that rests go on changing"
        time.sleep(0.1)
        if (now := snapshot(fleet.folder)) != last:
            last, since = now, time.monotonic()
