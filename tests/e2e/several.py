"""Three boxes with an etcd server and a control each, three with an agent and a GPU each, and a gateway here.

Answers for: real parts in network namespaces; a judge who looks into /proc all the time, and clients who ask all the
time. It may not know what is done to them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from scripts.fleet import spawned, start_ticks, wait_for
from scripts.ports import free_port, free_range
from tests.control import real_etcd
from tests.e2e.bridge import Bridge
from tests.e2e.conftest import fake, model

TTL_S = 3
CLIENT, PEER, CONTROL = 2379, 2380, 8801
BOXES, NODES = ("c1", "c2", "c3"), ("a1", "a2", "a3")
#: Always on; the third card is for one that an operator loads and ends again.
LOADED, NAP = ("alpha", "beta"), "nap"
GIB = 1 << 30
LOOK_S = 0.1
#: A drain that nobody asked for otherwise takes a minute after a change of leaders.
DEFAULTS = {"drain_timeout": "0.2s", "stop": {"signal": "TERM", "grace": "0.2s"}}
Json = dict[str, Any]
Life = tuple[int, int]


def environ(pid: str) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    if b"LLMGW_PORT=" not in raw:
        return {}
    return dict(p.partition("=")[::2] for p in raw.decode(errors="replace").split("\0"))


class Etcds:
    """Three servers; `copied` and `put_back` are a backup of a store that stands still."""

    def __init__(self, bridge: Bridge, folder: Path) -> None:
        self.bridge, self.folder = bridge, folder / "etcd"
        self.folder.mkdir()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.program = real_etcd.program()

    def url(self, box: str, port: int = CLIENT) -> str:
        return f"http://{self.bridge.address(box)}:{port}"

    @property
    def spec(self) -> str:
        servers = ",".join(f"{self.bridge.address(box)}:{CLIENT}" for box in BOXES)
        return f"etcd://{servers}?ttl={TTL_S}s"

    def start(self, *boxes: str) -> None:
        everybody = ",".join(f"{box}={self.url(box, PEER)}" for box in BOXES)
        for box in boxes or BOXES:
            client, peer = self.url(box), self.url(box, PEER)
            with (self.folder / f"{box}.log").open("ab") as log:
                self.processes[box] = subprocess.Popen(
                    [
                        *(*self.bridge.inside(box), str(self.program), "--name", box),
                        *("--data-dir", str(self.folder / box), "--unsafe-no-fsync"),
                        *("--listen-client-urls", client, "--advertise-client-urls", client),
                        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                        *("--heartbeat-interval", "100", "--election-timeout", "600"),
                        *("--initial-cluster", everybody),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        wait_for(self.healthy, "etcd is healthy")

    def healthy(self) -> bool:
        with suppress(httpx.HTTPError):
            for box in BOXES:
                said = httpx.get(f"{self.url(box)}/health", timeout=1, trust_env=False).json()
                if said.get("health") != "true":
                    return False
            return True
        return False

    def stop(self, *boxes: str) -> None:
        for box in boxes or tuple(self.processes):
            process = self.processes.pop(box)
            process.kill()
            process.wait()

    def copied(self) -> None:
        for box in BOXES:
            shutil.copytree(self.folder / box, self.folder / f"{box}.backup", dirs_exist_ok=True)

    def put_back(self) -> None:
        self.wipe()
        for box in BOXES:
            shutil.copytree(self.folder / f"{box}.backup", self.folder / box)

    def wipe(self) -> None:
        for box in BOXES:
            shutil.rmtree(self.folder / box)


class Several:
    def __init__(self, folder: Path, bridge: Bridge, library: Path) -> None:
        self.folder, self.bridge, self.library = folder, bridge, library
        self.etcds = Etcds(bridge, folder)
        self.ranges = {node: free_range() for node in NODES}
        self.gateway = f"http://127.0.0.1:{free_port()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.http = httpx.Client(timeout=5, trust_env=False)
        self.catalog = folder / "catalog.yaml"
        models = {name: self._model(name) for name in LOADED} | {NAP: self._model(NAP, least=0)}
        document = {"version": 1, "defaults": DEFAULTS, "models": models}
        self.catalog.write_text(yaml.safe_dump(document, sort_keys=False))

    @staticmethod
    def _model(name: str, least: int = 1) -> Json:
        command = fake("--host", "${host}", "--alias", name)
        return model(command, least=least, gpus=1, gpu_memory="20GiB", insecure=True)

    # -- parts

    def words(self, part: str) -> list[str]:
        address = self.bridge.address(part) if part in self.bridge.boxes else ""
        if part in BOXES:
            return [
                *("control", "--listen", f"{address}:{CONTROL}", "--gateway", "none"),
                *("--inventory", str(self.folder / part / "inventory.db")),
                *("--lease", self.etcds.spec, "--settle-timeout", "10s"),
            ]
        controls = [w for box in BOXES for w in ("--control", self.url(box))]
        if part == "gateway":
            listen = self.gateway.removeprefix("http://")
            return ["gateway", *controls, "--listen", listen, "--workers", "1"]
        low, high = self.ranges[part]
        return [
            *("agent", "--node", part, "--address", address, "--gpus", "auto", *controls),
            *("--state-dir", str(self.folder / part), "--ports", f"{low}-{high}"),
        ]

    def env(self, part: str) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith("LLMGW_")}
        own |= {
            "LLMGW_INSECURE": "1",
            "LLMGW_CATALOG": str(self.catalog),
            "LLMGW_STATE_DIR": str(self.folder / part),
        }
        if part in NODES:
            card = {"uuid": f"GPU-{part}", "mem_total": 24 * GIB, "mem_used": 0, "procs": []}
            cards = self.folder / f"{part}.json"
            cards.write_text(json.dumps({"gpus": [card], "xids": []}))
            own |= {"LD_LIBRARY_PATH": str(self.library), "FAKE_NVML_JSON": str(cards)}
        return own

    def log(self, part: str) -> str:
        return (self.folder / f"{part}.log.txt").read_text(errors="replace")

    def start(self, *parts: str) -> None:
        for part in parts:
            inside = self.bridge.inside(part) if part in self.bridge.boxes else []
            with (self.folder / f"{part}.log.txt").open("ab") as log:
                self.processes[part] = subprocess.Popen(
                    [*inside, sys.executable, "-m", "llmgw", *self.words(part)],
                    env=self.env(part),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def kill(self, *parts: str) -> None:
        for part in parts:
            self.processes[part].kill()
        for part in parts:
            self.processes.pop(part).wait()

    # -- what they say

    def url(self, box: str) -> str:
        return f"http://{self.bridge.address(box)}:{CONTROL}"

    def of(self, box: str, path: str = "/api/v1/leader", timeout_s: float = 2.0) -> Json:
        try:
            answer = self.http.get(self.url(box) + path, timeout=timeout_s)
            found: Json = answer.raise_for_status().json()
        except httpx.HTTPError:
            return {}
        return found

    def leaders(self, *boxes: str) -> list[str]:
        return [box for box in boxes or BOXES if self.of(box).get("leading")]

    def settled(self, box: str) -> bool:
        found = self.of(box, "/api/v1/status")
        return bool(found) and found["leader"]["leading"] and found["settling"] is None

    def leads_of(self, *boxes: str) -> str:
        """Who of these leads and may decide, once one does."""
        return wait_for(
            lambda: next((b for b in boxes if self.settled(b)), ""), f"one of {boxes} leads", 20.0
        )

    def verb(self, box: str, path: str, body: Json | None = None) -> httpx.Response:
        return self.http.post(f"{self.url(box)}/api/v1/{path}", json=body or {}, timeout=10)

    # -- truth

    def engines(self) -> list[tuple[Life, dict[str, str]]]:
        found = []
        ports = {str(p) for low, high in self.ranges.values() for p in range(low, high + 1)}
        for pid in os.listdir("/proc"):  # noqa: PTH208 - many times a second
            if pid.isdecimal() and (env := environ(pid)) and env.get("LLMGW_PORT") in ports:
                ticks = start_ticks(int(pid))
                if ticks:
                    found.append(((int(pid), ticks), env))
        return found

    def lives(self, *models: str) -> dict[str, Life]:
        return {e["LLMGW_MODEL"]: life for life, e in self.engines() if e["LLMGW_MODEL"] in models}

    def doubled(self) -> list[str]:
        """What must not be even for a moment."""
        running = self.engines()
        gpus = Counter(e["CUDA_VISIBLE_DEVICES"] for _, e in running)
        shards = Counter(e["LLMGW_MODEL"] for _, e in running)
        there = [(life, e["LLMGW_SHARD"]) for life, e in running]
        return [f"{x}: {n} times: {there}" for x, n in (gpus + shards).items() if n > 1]

    def obeyed(self) -> dict[str, int]:
        """The highest epoch that each agent has stored."""
        found = {}
        for node in NODES:
            with suppress(OSError, ValueError, TypeError, KeyError):
                told = json.loads((self.folder / node / "token.json").read_text())
                found[node] = int(told["epoch"])
        return found

    def ask(self, name: str, timeout_s: float = 20.0) -> httpx.Response:
        body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
        url = f"{self.gateway}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=timeout_s, trust_env=False)

    # -- all is well

    def begin(self) -> None:
        self.etcds.start()
        self.start(*BOXES, *NODES, "gateway")
        wait_for(lambda: len(self.lives(*LOADED)) == len(LOADED), "both are started")
        self.whole()
        wait_for(lambda: all(self.answers(name) for name in LOADED), "both are served")

    def answers(self, name: str) -> bool:
        with suppress(httpx.HTTPError):
            return self.ask(name).is_success
        return False

    def whole(self) -> str:
        """Heal and start what is not there; the one leader, once every control knows every node and each other."""
        self.bridge.heal()
        give_up = time.monotonic() + 90
        while True:
            for part, process in tuple(self.processes.items()):
                process.send_signal(signal.SIGCONT)
                if process.poll() is not None:  # another had its lease: what a service manager does
                    assert (part in BOXES, process.returncode) == (True, 1), self.log(part)[-2000:]
                    self.start(part)
            leader = next((b for b in BOXES if self.settled(b)), "")
            said = self.lacks(leader) if leader else "nobody leads"
            if not said:
                return leader
            assert time.monotonic() < give_up, said
            time.sleep(LOOK_S)

    def lacks(self, leader: str) -> str:
        """What is not yet as it is while all is well."""
        leading = self.leaders()
        standbys = self.of(leader).get("standbys", ())
        if leading != [leader] or len(standbys) != len(BOXES) - 1:
            return f"{leading} lead, not {leader}; {leader} knows {standbys}"
        for box in BOXES:
            found = self.of(box, "/api/v1/status")
            if not found:
                return f"{box} does not answer"
            ready = {r["model"] for r in found["replicas"] if r["state"] == "ready"}
            nodes = sorted(n["node"] for n in found["nodes"] if n["state"] != "unreachable")
            if nodes != sorted(NODES) or not ready >= set(LOADED):
                return f"{box} has nodes {nodes}, and {ready} ready; {found['warnings']}"
        return ""

    def decides(self, leader: str) -> None:
        """It loads one model, under its own epoch, and ends it again."""
        epoch = self.of(leader)["epoch"]
        self.verb(leader, f"models/{NAP}/wake").raise_for_status()
        wait_for(lambda: self.lives(NAP), f"{leader} has {NAP} started")
        ((_, env),) = [e for e in self.engines() if e[1]["LLMGW_MODEL"] == NAP]
        node = next(n for n in NODES if env["CUDA_VISIBLE_DEVICES"] == f"GPU-{n}")
        (told,) = [
            json.loads(p.read_text())["start"]
            for p in (self.folder / node / "records").glob("*.json")
            if f'"{env["LLMGW_INCARNATION"]}"' in p.read_text()
        ]
        assert told["epoch"] == epoch
        wait_for(lambda: self.answers(NAP), f"{NAP} is served")
        self.verb(leader, f"models/{NAP}/stop").raise_for_status()
        wait_for(lambda: not self.lives(NAP), f"{NAP} has ended")

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for (pid, _), _ in self.engines():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in spawned(str(self.folder / "gateway")):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.etcds.stop()
        self.http.close()


class Judge:
    """Looks and asks until the block ends; then nothing was doubled, cut, restarted, or obeyed an older epoch."""

    def __init__(self, fleet: Several) -> None:
        self.fleet = fleet
        self.over = threading.Event()
        self.doubled: list[str] = []
        self.failed: list[str] = []
        self.answered = 0
        self.obeyed: dict[str, list[int]] = {node: [] for node in NODES}

    def look(self) -> None:
        while not self.over.wait(LOOK_S):
            self.doubled += self.fleet.doubled()
            for node, epoch in self.fleet.obeyed().items():
                if self.obeyed[node][-1:] != [epoch]:
                    self.obeyed[node].append(epoch)

    def client(self, name: str) -> None:
        while not self.over.wait(0.02):
            try:
                answer = self.fleet.ask(name)
            except httpx.HTTPError as e:
                self.failed.append(f"{name}: {e!r}")
            else:
                self.answered += 1
                if answer.is_error:
                    self.failed.append(f"{name}: {answer.status_code} {answer.text[:200]}")


@contextmanager
def judged(fleet: Several, loaded: Iterable[str] = LOADED) -> Iterator[Judge]:
    before = fleet.lives(*loaded)
    judge = Judge(fleet)
    threads = [threading.Thread(target=judge.look)]
    threads += [threading.Thread(target=judge.client, args=(name,)) for name in loaded]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(judge.over.set)
        yield judge
    said = [*judge.failed, *judge.doubled]
    said += [] if judge.answered > 10 else [f"only {judge.answered} requests were answered"]
    said += [
        f"{node} obeyed epochs {epochs}"
        for node, epochs in judge.obeyed.items()
        if epochs != sorted(set(epochs))
    ]
    after = fleet.lives(*loaded)
    said += [] if after == before else [f"restarted: {before}, now {after}"]
    if said:
        pytest.fail("\n".join(said[:20]))
