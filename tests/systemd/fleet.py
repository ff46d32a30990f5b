"""Control, agent and a gateway of its own as units of a booted machine, two fake engines, and clients outside.

Answers for: settings as an operator would write them, the facts about who runs, and clients that note what failed.
It may not know what is tested.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from scripts.fleet import wait_for
from scripts.ports import free_port, free_range
from tests.e2e.conftest import fake, model
from tests.systemd.machine import Machine

CONTROL, AGENT, GATEWAY = UNITS = ("llmgw-control", "llmgw-agent", "llmgw-gateway")
#: answers at once, and token by token for three seconds
FAST, SLOW = "alpha", "beta"
TOKENS, TOKEN_S = 30, 0.1
Json = dict[str, Any]


class UnitFleet:
    def __init__(self, folder: Path) -> None:
        self.machine = Machine(folder)
        self.control, self.front, self.agent, self.side = (
            f"127.0.0.1:{free_port()}" for _ in range(4)
        )
        self.folder = folder
        self.http = httpx.Client(timeout=60, trust_env=False)

    def boot(self) -> None:
        self.settings()
        self.machine.boot()
        self.machine.ctl("start", *UNITS)
        self.whole()

    def settings(self) -> None:
        """What an operator would write on the box."""
        low, high = free_range()
        write = self.machine.write
        write("/etc/llmgw/catalog.yaml", self.catalog())
        write(
            "/etc/llmgw/control.env",
            f"LLMGW_LISTEN={self.control}\nLLMGW_GATEWAY={self.front}\nLLMGW_SETTLE_TIMEOUT=5s\n",
            0o600,
        )
        write(
            "/etc/llmgw/agent.env",
            f"LLMGW_CONTROL=http://{self.control}\nLLMGW_LISTEN={self.agent}\nLLMGW_NODE=box1\n"
            f"LLMGW_PORTS={low}-{high}\nLLMGW_GPUS=none\n",
        )
        write(
            "/etc/llmgw/gateway.env",
            f"LLMGW_CONTROL=http://{self.control}\nLLMGW_LISTEN={self.side}\n",
        )
        # A minute is too long for a test; how often a sign of life comes follows from it.
        for unit in UNITS:
            write(f"/etc/systemd/system/{unit}.service.d/test.conf", "[Service]\nWatchdogSec=3\n")

    def catalog(self, more: dict[str, Json] | None = None) -> str:
        slow = ("--tokens", str(TOKENS), "--token-interval-s", str(TOKEN_S))
        models = {FAST: model(fake("--alias", FAST)), SLOW: model(fake("--alias", SLOW, *slow))}
        for name, keys in (more or {}).items():
            models[name] |= keys
        defaults: Json = {"restart": {"max": 50, "window": "30m", "backoff": "0.1s"}}
        return yaml.safe_dump({"version": 1, "defaults": defaults, "models": models})

    def close(self) -> None:
        self.http.close()
        self.machine.close()

    # -- facts

    def status(self) -> Json | None:
        try:
            found: Json = (
                self.http.get(f"http://{self.control}/api/v1/status").raise_for_status().json()
            )
        except httpx.HTTPError:
            return None
        return found

    def engines(self) -> dict[str, int] | None:
        """Model -> pid inside the machine, once both are ready."""
        replicas = (self.status() or {"replicas": []})["replicas"]
        found = {r["model"]: r["shards"][0]["pid"] for r in replicas if r["state"] == "ready"}
        return found if found.keys() == {FAST, SLOW} else None

    def whole(self) -> dict[str, int]:
        """Everything runs and settled; the engines' pids."""
        self.machine.ctl("start", *UNITS)
        wait_for(lambda: (self.status() or {"settling": 1})["settling"] is None, "settled", 30)
        pids = wait_for(self.engines, "both engines ready", 30)
        for gateway in (self.front, self.side):
            for name in (FAST, SLOW):
                wait_for(lambda g=gateway, n=name: n in self.models(g), "routes", 20)  # type: ignore[misc]
        return pids

    def models(self, gateway: str) -> list[str]:
        try:
            found = self.http.get(f"http://{gateway}/v1/models").json()
        except httpx.HTTPError:
            return []
        return [m["id"] for m in found["data"]]

    def gateways(self) -> list[int]:
        """Pids of those that control started."""
        found = self.machine.run("pgrep", "-f", "gateway --control.*--listen-fd", check=False)
        return [int(pid) for pid in found.split()]

    def serve_aside(self, where: str) -> None:
        """The address of the gateway of its own."""
        env = f"LLMGW_CONTROL=http://{self.control}\nLLMGW_LISTEN={where}\n"
        self.machine.put("/etc/llmgw/gateway.env", env)
        self.machine.ctl("restart", GATEWAY)

    # -- clients

    def ask(self, gateway: str, name: str = FAST, question: str = "hello") -> str:
        """Over a connection of its own; what it said."""
        body = {"model": name, "messages": [{"role": "user", "content": question}]}
        answer = httpx.post(
            f"http://{gateway}/v1/chat/completions", json=body, timeout=60, trust_env=False
        )
        return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])

    def answers(self, gateway: str, name: str) -> bool:
        try:
            return bool(self.ask(gateway, name))
        except httpx.HTTPStatusError:
            return False

    def load(self, gateway: str) -> Load:
        return Load(lambda: self.ask(gateway))

    def stream(self, gateway: str) -> Stream:
        return Stream(f"http://{gateway}/v1/chat/completions")


class Load:
    """One question after the other until the end of the block; the failures are kept."""

    def __init__(self, ask: Callable[[], str]) -> None:
        self._ask = ask
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failed: list[str] = []
        self.answered = 0

    def __enter__(self) -> Load:
        self._thread.start()
        wait_for(lambda: self.answered, "a first answer", 10)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._ask()
            except httpx.HTTPError as e:
                self.failed.append(f"{time.monotonic():.2f} {e!r}")
            else:
                self.answered += 1
            time.sleep(0.02)


class Stream:
    """A streamed answer of some seconds; `tokens` counts as they come."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.tokens = 0
        self.ended = ""

    def begun(self) -> Stream:
        self._thread.start()
        wait_for(lambda: self.tokens, "a first token")
        return self

    def whole(self) -> bool:
        """Waits for its end: each token came, and the end was told."""
        self._thread.join(20)
        return self.ended == "[DONE]" and self.tokens == TOKENS

    def _run(self) -> None:
        body = {"model": SLOW, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        try:
            with httpx.stream("POST", self._url, json=body, timeout=60, trust_env=False) as answer:
                for line in filter(None, answer.iter_lines()):
                    self.ended = line.removeprefix("data: ")
                    self.tokens += " t" in _content(self.ended)
        except httpx.HTTPError as e:
            self.ended = repr(e)


def _content(data: str) -> str:
    if data == "[DONE]":
        return ""
    return str(json.loads(data)["choices"][0].get("delta", {}).get("content") or "")
