"""A booted systemd in a container over a throw-away copy of this box, with the shipped units in it.

The root of the box is the lower layer of an overlay in memory, so nothing that happens inside reaches it; the network
is the box's own loopback. Answers for: boot, a word to its systemctl, and that no process, mount or cgroup is left.
It may not know what is tested.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from scripts.fleet import wait_for

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "packaging" / "systemd"
#: Of the journal of a failed test no more than this is shown.
TAIL = 60
#: /root is where Python may live, and the gateway has a user of its own.
SCRIPT = """set -eu
mount -t tmpfs -o mode=755 tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
cp -a "$2"/. root/
chmod 755 root/root
rm -f root/etc/systemd/system/*.wants/*
shift 2
exec systemd-nspawn -q -D root "$@" --register=no --keep-unit --console=pipe --boot -- systemd.unit=basic.target
"""


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: what is copied over its root before it boots
        self.files = folder / "files"
        self._log = folder / "console.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._leader = 0

    # -- its life

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.files / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def provide(self) -> None:
        """The units of the checkout, and an `llmgw` that runs it."""
        for unit in UNITS.iterdir():
            self.write(f"/etc/systemd/system/{unit.name}", unit.read_text())
        command = f'#!/bin/sh\nexec env PYTHONPATH={ROOT} {sys.executable} -m llmgw "$@"\n'
        self.write("/usr/local/bin/llmgw", command, 0o755)

    def boot(self) -> None:
        self.provide()
        stage = self.folder / "machine"
        stage.mkdir()
        name = f"--machine=llmgw{os.getpid()}"
        binds = [
            f"--bind-ro={p}" for p in _other_mounts(ROOT, Path(sys.base_prefix), Path(sys.prefix))
        ]
        words: list[str | Path] = [
            "unshare",
            "-m",
            "bash",
            "-c",
            SCRIPT,
            "bash",
            stage,
            self.files,
            name,
            *binds,
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._leader = wait_for(self._first_child, "the machine's pid 1", 20)
        wait_for(self._up, "a booted systemd", 30)

    def _first_child(self) -> int | None:
        assert self._process is not None
        pid = self._process.pid
        assert self._process.poll() is None, self._log.read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in map(int, children):
            with contextlib.suppress(OSError):
                # nspawn's own helpers come first and go
                if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return child
        return None

    def _up(self) -> bool:
        state = self.run("systemctl", "is-system-running", check=False)
        return state.strip() in ("running", "degraded")

    def close(self) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader, signal.SIGKILL)  # pid 1 of its namespace: all of it ends
            process.kill()
            process.wait(60)
        _remove_cgroups()

    # -- a word to it

    def run(self, *words: object, check: bool = True, timeout_s: float = 60) -> str:
        """What it prints; with `check` it must exit 0."""
        done = subprocess.run(
            ["nsenter", "-t", str(self._leader), "-a", "--", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}"
        return done.stdout

    def ctl(self, *words: object, check: bool = True) -> str:
        try:
            return self.run("systemctl", *words, check=check)
        except AssertionError as e:
            said = self.run("journalctl", "-q", "--no-pager", "-o", "cat", "-n", TAIL, check=False)
            msg = f"{e}\n{said}"
            raise AssertionError(msg) from None

    def show(self, unit: str, key: str) -> str:
        return self.ctl("show", unit, "--property", key, "--value").strip()

    def main_pid(self, unit: str) -> int:
        return int(self.show(unit, "MainPID"))

    def cgroup(self, pid: int) -> str:
        """The path in systemd's own hierarchy."""
        lines = self.run("cat", f"/proc/{pid}/cgroup").splitlines()
        paths = dict(line.split(":", 2)[1:] for line in lines)
        return paths.get("name=systemd") or paths[""]

    def status(self, pid: int) -> dict[str, str]:
        lines = self.run("cat", f"/proc/{pid}/status").splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def members(self, cgroup: str) -> list[int]:
        """Pids directly in it."""
        command = f"cd /sys/fs/cgroup/systemd 2>/dev/null || cd /sys/fs/cgroup; cat .{cgroup}/cgroup.procs"
        return [int(pid) for pid in self.run("sh", "-c", command).split()]

    def put(self, path: str, text: str) -> None:
        """Write a file while it runs."""
        self.run("sh", "-c", f"cat > {path} <<'END'\n{text}\nEND")

    def outside(self, pid: int) -> int:
        """The number that the box has for one of its processes."""
        space = Path(f"/proc/{self._leader}/ns/pid").readlink()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                status = (folder / "status").read_text().partition("NSpid:")[2].split("\n")[0]
                if status.split()[-1] == str(pid) and (folder / "ns/pid").readlink() == space:
                    return int(folder.name)
        msg = f"no process {pid} in the machine"
        raise ProcessLookupError(msg)

    def journal(self, unit: str, lines: int = TAIL) -> str:
        return self.run("journalctl", "-q", "--no-pager", "-o", "cat", "-n", lines, "-u", unit)


def _other_mounts(*paths: Path) -> list[Path]:
    """What is not on the root file system is not in the overlay either."""
    device = Path("/").stat().st_dev
    return [p for p in dict.fromkeys(paths) if p.stat().st_dev != device]


def _remove_cgroups() -> None:
    """nspawn leaves `payload` and `supervisor` below the cgroup it was started in, empty."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in {"name=systemd": ("systemd",), "": ("unified", "")}.get(controllers, ()):
            base = Path("/sys/fs/cgroup") / mount / path.lstrip("/")
            for name in ("payload", "supervisor"):
                folders = [p for p in (base / name).rglob("*") if p.is_dir()]
                for folder in (*sorted(folders, reverse=True), base / name):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
