"""A small disk of one's own, that can be full or read-only; root only, so who asks for it skips elsewhere.

Answers for: mounting it and leaving nothing mounted.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SIZE = "512k"


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0


@contextmanager
def disk(where: Path) -> Iterator[Path]:
    """A tmpfs at `where`."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small tmpfs that a test can fill")
    where.mkdir(parents=True, exist_ok=True)
    if not _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(where)):
        pytest.skip(
            "needs to mount a tmpfs, which this machine refuses (a container without CAP_SYS_ADMIN?)"
        )
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=False)


@contextmanager
def full(where: Path) -> Iterator[None]:
    """Not a byte is left on the disk there."""
    ballast = where / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        for piece in (4096, 1):
            with suppress(OSError):
                while file.write(b"x" * piece):
                    pass
    yield
    ballast.unlink()


@contextmanager
def read_only(where: Path) -> Iterator[None]:
    """As after an error of the disk: files that are open stay so, and nothing new can be opened for writing."""
    assert _mount("--bind", str(where), str(where))
    try:
        assert _mount("-o", "remount,ro,bind", str(where))
        yield
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


@contextmanager
def also_at(what: Path, where: Path) -> Iterator[None]:
    """The same file or folder under another path, as a container gets it."""
    where.mkdir(parents=True) if what.is_dir() else where.touch()
    if os.geteuid() != 0 or not _mount("--bind", str(what), str(where)):
        pytest.skip("needs root, to bind-mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)
