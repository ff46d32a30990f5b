"""`llmgw drain` with real processes: a stream ends whole, control is killed in the middle, and nothing comes back."""

import json
import threading
from typing import Any

import httpx
import yaml
from typing_extensions import override

from scripts.fleet import Fleet, wait_for
from scripts.ports import free_port, free_range
from tests.e2e.conftest import Make, fake, model

Json = dict[str, Any]
TOKENS, PAUSE_S = 30, 0.1
#: After a start of control a drain waits for gateways that it may not have heard of, at most this long.
DEFAULTS = {"drain_timeout": "4s", "start_limit": 5}


class Stream(threading.Thread):
    """One client that reads a stream to its end."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        super().__init__(daemon=True)
        self.url = f"{fleet.urls['gateway']}/v1/chat/completions"
        self.name_of_model = name
        self.said: list[str] = []
        self.problem = ""
        self.whole = False

    @override
    def run(self) -> None:
        body = {
            "model": self.name_of_model,
            "stream": True,
            "messages": [{"role": "user", "content": "count"}],
        }
        try:
            with httpx.stream("POST", self.url, json=body, timeout=60, trust_env=False) as answer:
                for line in answer.iter_lines():
                    if line == "data: [DONE]":
                        self.whole = True
                    elif line.startswith("data: "):
                        delta = json.loads(line[6:])["choices"][0]["delta"]
                        self.said.append(delta.get("content") or "")
        except httpx.HTTPError as e:
            self.problem = f"{type(e).__name__}: {e}"


def two_boxes(make: Make) -> Fleet:
    fleet = make({})
    slow = fake("--alias", "alpha", "--tokens", str(TOKENS), "--token-interval-s", str(PAUSE_S))
    models = {"alpha": model(slow), "beta": model(fake("--alias", "beta"), least=0)}
    text = yaml.safe_dump({"version": 1, "defaults": DEFAULTS, "models": models})
    fleet.catalog.write_text(text)
    ports = free_range()
    fleet.ranges.append(ports)
    fleet.more["agent2"] = [
        *("agent", "--node", "box2", "--listen", f"127.0.0.1:{free_port()}", "--gpus", "none"),
        *("--ports", "{}-{}".format(*ports), "--state-dir", str(fleet.folder / "agent2")),
    ]
    fleet.start("control", "agent", "agent2")
    return fleet


def home(fleet: Fleet, name: str = "alpha") -> tuple[str, int]:
    shard = fleet.ready(name)["shards"][0]
    return shard["node"], shard["pid"]


def status(fleet: Fleet) -> Json:
    found = fleet.status()
    assert found is not None
    return found


def state_of(fleet: Fleet, node: str) -> str:
    found = fleet.status() or {"nodes": []}
    return next((n["state"] for n in found["nodes"] if n["node"] == node), "")


def test_a65_a_stream_ends_whole_while_its_model_moves_and_control_is_killed(make: Make) -> None:
    fleet = two_boxes(make)
    node, pid = home(fleet)
    fleet.served("alpha")
    stream = Stream(fleet, "alpha")
    stream.start()
    wait_for(lambda: len(stream.said) > 3, "the stream has begun")

    said = fleet.llmgw("drain", node)
    assert (said.returncode, list(fleet.engines())) == (2, [pid])
    assert "add --yes to mean it" in said.stderr
    said = fleet.llmgw("drain", node, "--yes")
    assert (said.returncode, said.stderr) == (0, "")
    assert f"{node} is drained since" in said.stdout
    assert "alpha-" in said.stdout
    epoch = fleet.life("control")
    fleet.kill("control")
    fleet.start("control")
    fleet.back("control", epoch)

    wait_for(lambda: state_of(fleet, node) == "drained", f"{node} is free")
    stream.join()
    assert (stream.problem, stream.whole) == ("", True)
    assert "".join(stream.said).split() == [f"t{i}" for i in range(1, TOKENS + 1)]
    assert pid not in fleet.engines()
    other, new = home(fleet)
    assert (other != node, list(fleet.engines())) == (True, [new])
    assert fleet.llmgw("status", "--check").returncode == 0

    fleet.kill("agent" if node == "box1" else "agent2")
    fleet.start("agent" if node == "box1" else "agent2")
    wait_for(lambda: (fleet.survey() or {}).get("complete"), "a complete survey")
    assert state_of(fleet, node) == "drained"
    assert list(fleet.engines()) == [new]


def test_what_fits_nowhere_is_told_at_once_and_undrain_gives_it_back(make: Make) -> None:
    fleet = two_boxes(make)
    node, pid = home(fleet)
    for name in ("box2", "box1"):
        assert fleet.llmgw("drain", name, "--yes").returncode == 0
    wait_for(lambda: not fleet.engines(), "nothing of ours runs")
    body = {"model": "beta", "messages": [{"role": "user", "content": "hello"}]}
    url = f"{fleet.urls['gateway']}/v1/chat/completions"
    answer = fleet.http.post(url, json=body)
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    error = answer.json()["error"]
    assert error["code"] == "model_no_room"
    assert "box1: is drained since" in error["message"]
    said = fleet.llmgw("undrain", "box1")
    assert said.stdout.startswith("box1 may be used again; it had been drained since")
    wait_for(lambda: fleet.http.post(url, json=body).status_code == httpx.codes.OK, "beta answers")
    assert home(fleet) != (node, pid)
    said = fleet.llmgw("drain", "bxo1", "--yes")
    assert (said.returncode, said.stderr) == (
        1,
        "llmgw: there is no node called bxo1\nhint: did you mean box1? `llmgw status` shows what there is\n",
    )
