"""The second box is one pasted line away: what `llmgw token` prints is run there as it is (contract/http.md).

Two boxes: this one with control, and a network namespace whose only way out leads here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.fleet import marked, wait_for
from scripts.ports import free_port, free_range
from tests.beds import needs
from tests.e2e.conftest import fake, model, write_catalog
from tests.e2e.netns import Wires, ip, wired

pytestmark = [pytest.mark.netns, needs("ip", "bash")]
Json = dict[str, Any]
BOX, TOKEN = "box1", "0perators"


class TwoBoxes:
    def __init__(self, folder: Path, wires: Wires) -> None:
        self.folder, self.wires = folder, wires
        command = fake("--host", "${host}", "--alias", "alpha")
        self.catalog = write_catalog(
            folder / "catalog.yaml", {"alpha": model(command, insecure=True)}
        )
        self.port, self.gateway = free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.engines: set[int] = set()
        name = wires.names[BOX]
        ip("-n", name, "route", "add", "default", "via", wires.here(BOX))

    def env(self, box: str, **more: str) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith("LLMGW_")}
        own["PATH"] = f"{Path(sys.executable).parent}:{own['PATH']}"
        return own | {"LLMGW_STATE_DIR": str(self.folder / box)} | more

    def start(self, name: str, words: list[str], env: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def control(self) -> None:
        words = ["llmgw", "control", "--catalog", str(self.catalog), "--settle-timeout", "5s"]
        words += ["--listen", f"0.0.0.0:{self.port}", "--gateway", f"127.0.0.1:{self.gateway}"]
        self.start("control", words, self.env("here", LLMGW_TOKEN=TOKEN))
        self.ask("status", until=0)

    def agent(self, line: str) -> None:
        """In the namespace, by a shell, with what is this test's in the environment."""
        low, high = self.ports
        own = self.env("there", LLMGW_NODE="box2", LLMGW_GPUS="none", LLMGW_PORTS=f"{low}-{high}")
        self.start("agent", [*self.wires.inside(BOX), "bash", "-c", line], own)

    @property
    def ports(self) -> tuple[int, int]:
        if not hasattr(self, "_ports"):
            self._ports = free_range()
        return self._ports

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def llmgw(self, *words: str, box: str = "here") -> subprocess.CompletedProcess[str]:
        """As on that box, with no word of where control is."""
        return subprocess.run(
            ["llmgw", *words],
            env=self.env(box, LLMGW_TOKEN=TOKEN),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ask(self, *words: str, until: int | None = None) -> Json:
        def look() -> Json | None:
            done = self.llmgw(*words, "-o", "json")
            good = until is None or done.returncode == until
            return json.loads(done.stdout) if good and done.stdout else None

        return wait_for(look, " ".join(words))

    def row(self) -> Json | None:
        found = next(iter(self.ask("status")["replicas"]), None)
        self.engines |= {s["pid"] for s in (found or {"shards": []})["shards"] if s["pid"]}
        return found

    def ready(self) -> Json | None:
        row = self.row()
        return row if row is not None and row["state"] == "ready" else None

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for name in tuple(self.processes):
            self.kill(name)
        self.llmgw("down")
        for pid in self.engines | dict(marked([self.ports])).keys():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[TwoBoxes]:
    with wired() as wires:
        made = TwoBoxes(tmp_path, wires)
        try:
            yield made
        finally:
            made.close()


def test_one_pasted_line_adds_a_box_and_revoking_its_token_takes_it_away(boxes: TwoBoxes) -> None:
    boxes.control()
    line = boxes.llmgw("token").stdout.strip()
    assert "LLMGW_NODE_TOKEN=llmgw-node-" in line
    boxes.agent(line)
    row = wait_for(boxes.ready, "an engine on the second box")
    assert row["endpoint"].startswith(f"http://{boxes.wires.address(BOX)}:")
    assert boxes.ask("token", "list")["tokens"][0]["node"] == "box2"

    # Its log comes through control, from an agent that is known by its certificate.
    log = boxes.llmgw("logs", row["replica"])
    assert log.returncode == 0, log.stderr
    assert log.stdout
    (there,) = (boxes.folder / "there" / "agent").glob("url")
    assert there.read_text().startswith(f"https://{boxes.wires.address(BOX)}:8802#sha256:")

    # A restart of the agent needs neither the line nor an environment of its own.
    pid = row["shards"][0]["pid"]
    boxes.kill("agent")
    boxes.agent("exec llmgw agent")
    wait_for(lambda: boxes.said("agent").count("registered") >= 2, "it has registered again")
    row = wait_for(boxes.ready, "the same engine")
    assert row["shards"][0]["pid"] == pid

    # With control killed the dry run asks that agent itself.
    boxes.kill("control")
    plan = boxes.ask("adopt", "--dry-run", "--catalog", str(boxes.catalog))
    assert (plan["source"], plan["complete"], plan["disturbs"]) == ("agents", True, 0)
    assert [s["node"] for s in plan["shards"]] == ["box2"]

    boxes.control()
    wait_for(boxes.ready, "adopted")
    assert boxes.llmgw("token", "revoke", "node-1", "--yes").stdout == "revoked node-1\n"
    wait_for(lambda: "the token is wrong" in boxes.said("agent"), "the agent is refused")
    nodes = wait_for(
        lambda: [n for n in boxes.ask("status")["nodes"] if n["state"] != "ready"], "silent"
    )
    assert [n["node"] for n in nodes] == ["box2"]
    os.kill(pid, 0)  # the engine keeps running


def test_two_boxes_with_one_line_are_one_too_many_and_a_wrong_pin_tells_nothing(
    boxes: TwoBoxes,
) -> None:
    boxes.control()
    found = boxes.ask("token")
    wrong = found["line"].replace(found["pin"], f"sha256:{'0' * 64}")
    boxes.agent(wrong)
    wait_for(lambda: "its certificate is sha256:" in boxes.said("agent"), "it says what is wrong")
    assert f"its certificate is {found['pin']}, pinned is sha256:000" in boxes.said("agent")
    assert boxes.ask("status")["nodes"] == []
    boxes.kill("agent")
    boxes.agent(found["line"])
    wait_for(lambda: "registered" in boxes.said("agent"), "it joins")
    boxes.kill("agent")
    there = boxes.folder / "there" / "agent"
    for name in ("identity.json", "node.copy"):
        (there / name).unlink()  # another machine, as far as anybody can tell
    boxes.agent(f"{found['line']} --node box3")
    wait_for(lambda: "its token node-1 belongs to box2" in boxes.said("agent"), "refused")
    assert [n["node"] for n in boxes.ask("status")["nodes"]] == ["box2"]
    assert boxes.ask("token")["name"] == "node-2"


#: What a client on that box asks, and prints: the status and the answer.
ASK = """
import json, sys, urllib.error, urllib.request
body = json.dumps({"model": "alpha", "messages": [{"role": "user", "content": "?"}]}).encode()
try:
    request = urllib.request.Request(sys.argv[1], body, {"content-type": "application/json"})
    answer = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60)
except urllib.error.HTTPError as e:
    answer = e
print(answer.status, answer.read().decode())
"""


def test_an_engine_of_before_there_was_a_second_box_is_its_own_boxes_until_it_is_stopped(
    boxes: TwoBoxes,
) -> None:
    """The first box leaves loopback with the engine running; the second one's loopback is another."""
    boxes.control()
    found = boxes.ask("token")
    low, high = boxes.ports
    more = {"LLMGW_NODE": "box1", "LLMGW_GPUS": "none", "LLMGW_PORTS": f"{low}-{high}"}
    more["LLMGW_NODE_TOKEN"] = found["line"].partition("LLMGW_NODE_TOKEN=")[2].partition(" ")[0]
    url = found["line"].partition("--control ")[2].partition(" ")[0]
    join = ["--control", url, "--pin", found["pin"], "--listen", "none"]
    own = boxes.env("here", **more)
    boxes.start("agent", ["llmgw", "agent", *join, "--address", "127.0.0.1"], own)
    row = wait_for(boxes.ready, "an engine on loopback")
    assert row["endpoint"].startswith("http://127.0.0.1:")
    assert boxes.ask("status")["warnings"] == []

    there = boxes.env("there", LLMGW_NODE_TOKEN=more["LLMGW_NODE_TOKEN"])
    port = free_port()
    words = ["llmgw", "gateway", "--control", url, "--pin", found["pin"]]
    words += ["--listen", f"127.0.0.1:{port}"]
    boxes.start("gateway", [*boxes.wires.inside(BOX), *words], there)
    boxes.kill("agent")
    boxes.start("agent", ["llmgw", "agent", *join, "--address", "auto"], own)
    warnings: list[str] = wait_for(lambda: boxes.ask("status")["warnings"], "it is said")
    (said,) = warnings
    assert said.startswith(f"{row['replica']} listens on 127.0.0.1 of box1 only")
    now = wait_for(boxes.ready, "still ready")
    assert [s["pid"] for s in now["shards"]] == [s["pid"] for s in row["shards"]]

    def asked(gateway: int, *before: str) -> str:
        at = f"http://127.0.0.1:{gateway}/v1/chat/completions"
        words = [*before, sys.executable, "-c", ASK, at]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout

    def far() -> str:
        return asked(port, *boxes.wires.inside(BOX))

    assert "200 " in asked(boxes.gateway)
    refused = wait_for(
        lambda: a if (a := far()).startswith("503") else None, "the other box's gateway"
    )
    assert json.loads(refused[4:])["error"]["code"] == "engine_elsewhere"

    assert boxes.llmgw("stop", row["replica"], "--yes").returncode == 0
    wait_for(lambda: far().startswith("200 "), "the next one serves both boxes")
    assert "200 " in asked(boxes.gateway)
    assert boxes.ask("status")["warnings"] == []
