"""Control and agent of one box as real processes in a folder of their own: for the demo and the end-to-end tests.

Answers for: free ports, logs in files, waits for facts instead of time, and that nothing is left behind. It may not
know what is tried with it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from llmgw import handover
from llmgw.errors import LlmgwError
from scripts.ports import free_port, free_range

T = TypeVar("T")
Json = dict[str, Any]
PARTS = ("control", "agent")
TICK_S = 0.05


def wait_for(look: Callable[[], T | None], what: str, timeout_s: float = 60.0) -> T:
    """The first answer of `look` that is something; a test waits for an event, not for time."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if found := look():
            return found
        time.sleep(TICK_S)
    msg = f"{what}: not within {timeout_s:g} s"
    raise TimeoutError(msg)


def start_ticks(pid: int) -> int | None:
    """When the kernel started this process, 0 for a zombie's; with the pid it says which process it is."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return 0 if fields[0] == "Z" else int(fields[19])


class Fleet:
    def __init__(self, folder: Path, catalog: Path, *, settle_timeout: str = "20s") -> None:
        self.folder = folder
        self.catalog = catalog
        self.settle_timeout = settle_timeout
        self.urls = {p: f"http://127.0.0.1:{free_port()}" for p in (*PARTS, "gateway")}
        self.ports = free_range()
        #: where engines of this fleet may be, to find what is left of them
        self.ranges = [self.ports]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.http = httpx.Client(timeout=60, trust_env=False)
        self.node = "box1"
        #: further parts by name, and what is added to the words of those there are
        self.more: dict[str, list[str]] = {}

    @property
    def inventory(self) -> Path:
        return self.folder / "control" / "inventory.db"

    @property
    def env(self) -> dict[str, str]:
        """What `llmgw` needs to speak to this fleet and to no other."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("LLMGW_")}
        return own | {
            "LLMGW_CONTROL": self.urls["control"],
            "LLMGW_AGENT": self.urls["agent"],
            "LLMGW_STATE_DIR": str(self.folder),
            "LLMGW_CATALOG": str(self.catalog),
            "NO_COLOR": "1",
        }

    def words(self, part: str) -> list[str]:
        """The command line of a part; a name that is neither control nor agent is all in `more`."""
        place = {name: url.removeprefix("http://") for name, url in self.urls.items()}
        words: list[str] = []
        if part == "control":
            settle = ["--settle-timeout", self.settle_timeout]
            words = [part, "--listen", place[part], "--gateway", place["gateway"], *settle]
        elif part == "agent":
            words = [part, "--node", self.node, "--listen", place[part], "--gpus", "none"]
            words += ["--ports", "{}-{}".format(*self.ports)]
        return [*words, *self.more.get(part, ())]

    def log(self, part: str) -> Path:
        return self.folder / f"{part}.log"

    def start(self, *parts: str) -> None:
        for part in parts:
            self.processes[part] = self.execute(part)

    def execute(self, part: str) -> "subprocess.Popen[bytes]":
        with self.log(part).open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "llmgw", *self.words(part)],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def kill(self, part: str) -> None:
        """As a crash does it: no signal it could catch."""
        process = self.processes.pop(part)
        process.kill()
        process.wait()

    def kill_pid(self, pid: int) -> None:
        """The same for a process that is not our child."""
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not start_ticks(pid), f"the end of pid {pid}")

    def llmgw(self, *words: object, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "llmgw", *map(str, words)]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def status(self) -> Json | None:
        """Control's picture, or None where it does not answer."""
        try:
            found: Json = (
                self.http.get(f"{self.urls['control']}/api/v1/status").raise_for_status().json()
            )
        except httpx.HTTPError:
            return None
        return found

    def replicas(self, model: str, state: str = "ready") -> list[Json]:
        found = self.status() or {"replicas": []}
        return [r for r in found["replicas"] if (r["model"], r["state"]) == (model, state)]

    def ready(self, model: str, timeout_s: float = 60.0) -> Json:
        """The one ready replica of `model`, of a control that has settled and whose gateway is up."""

        def look() -> Json | None:
            self.check_alive()
            settled = (self.status() or {"settling": True})["settling"] is None
            there = settled and self.gateway_pid() is not None
            return next(iter(self.replicas(model)), None) if there else None

        return wait_for(look, f"{model} ready", timeout_s)

    def served(self, model: str, timeout_s: float = 60.0) -> None:
        """Until the gateway routes it."""
        url = f"{self.urls['gateway']}/v1/models/{model}"

        def look() -> bool:
            try:
                answer = self.http.get(url)
            except httpx.HTTPError:
                return False
            found = answer.status_code == httpx.codes.OK and answer.json()
            return bool(found and found["status"]["value"] == "loaded")

        wait_for(look, f"{model} routed", timeout_s)

    def life(self, part: str) -> object:
        """Which life of a part answers: control's epoch, the agent's instance, the gateway's pid; None for none."""
        if part == "gateway":
            return self.gateway_pid()
        path = "/api/v1/leader" if part == "control" else "/v1/inventory"
        try:
            found: Json = self.http.get(self.urls[part] + path).raise_for_status().json()
        except httpx.HTTPError:
            return None
        return found["epoch" if part == "control" else "instance"]

    def back(self, part: str, old: object, timeout_s: float = 60.0) -> None:
        """Another life of `part` answers, and all parts know each other again: a survey of the fleet is complete."""
        wait_for(lambda: self.life(part) not in (None, old), f"a new {part}", timeout_s)
        wait_for(lambda: (self.survey() or {}).get("complete"), "a complete survey", timeout_s)

    def survey(self) -> Json | None:
        """Control asks every agent for its complete inventory now."""
        self.check_alive()
        try:
            answer = self.http.post(f"{self.urls['control']}/api/v1/adopt", json={})
        except httpx.HTTPError:
            return None
        found: Json = answer.json()
        return found if answer.status_code == httpx.codes.OK and found["nodes"] else None

    def check_alive(self) -> None:
        for part, process in self.processes.items():
            if process.poll() is not None:
                said = self.log(part).read_text(errors="replace")[-2000:]
                msg = f"{part} ended with {process.returncode}; it said: {said}"
                raise RuntimeError(msg)

    def gateway_pid(self) -> int | None:
        try:
            return handover.hello(self.folder / "control" / "gateway", timeout_s=30).pid
        except LlmgwError:
            return None

    def engines(self) -> dict[int, str]:
        """Pid -> shard of every process that carries this fleet's marker, whoever still knows of it."""
        return dict(marked(self.ranges))

    def close(self) -> None:
        """End every process of this fleet, engines and gateway included, by their ids."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        # Gateways by their command line: one that control has only just spawned answers nobody yet.
        for pid in [*self.engines(), *spawned(str(self.folder / "control" / "gateway"))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.http.close()


def spawned(state_dir: str) -> Iterator[int]:
    """Processes that were given this state dir."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and state_dir in words_of(folder):
                yield int(folder.name)


def words_of(folder: Path) -> list[str]:
    return (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")


def marked(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    """Processes whose environment says that an agent started them on a port of these."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        env = dict(pair.partition("=")[::2] for pair in pairs)
        port = env.get("LLMGW_PORT", "")
        if port.isdecimal() and any(low <= int(port) <= high for low, high in ranges):
            yield int(folder.name), env.get("LLMGW_SHARD", "?")
