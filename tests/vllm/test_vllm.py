"""The built-in engine `vllm` with a real vLLM on the CPU: up, asked, its agent killed, adopted, asked again, stopped.

Takes a minute or two and 3 GB of memory: `make test-vllm` installs what it needs and asks for it; otherwise it skips.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from scripts.fleet import Fleet, start_ticks, wait_for

ROOT = Path(__file__).resolve().parents[2]
HOME, MODEL = ROOT / "build" / "vllm", ROOT / "build" / "models" / "tiny-hf"
START_S = 480.0
PROFILE: dict[str, Any] = {
    "name": "cpu",
    "engine": "vllm",
    "weights": str(MODEL),
    # float32: with bfloat16 its worker died of the first request on the box where this was written
    "args": ["--max-model-len", "512", "--enforce-eager", "--dtype", "float32"],
    "env": {
        "PATH": f"{HOME / 'bin'}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    },
    "ready": {"token": True},
    "start_timeout": f"{START_S:g}s",
}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(START_S + 240),
    pytest.mark.skipif(
        os.environ.get("TEST_VLLM") != "1",
        reason="a real vLLM takes minutes and gigabytes: `make test-vllm` runs this",
    ),
]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    catalog = tmp_path / "catalog.yaml"
    tiny = {"scaling": {"min": 0}, "wait_timeout": f"{START_S:g}s", "profiles": [PROFILE]}
    models = {"tiny": tiny}
    catalog.write_text(yaml.safe_dump({"version": 1, "models": models}))
    fleet = Fleet(tmp_path, catalog)
    yield fleet
    fleet.close()


def ask(fleet: Fleet, timeout_s: float = 60.0) -> dict[str, Any]:
    """A chat by the gateway; the first one wakes the model and waits for it."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    url = f"{fleet.urls['gateway']}/v1/chat/completions"
    answer = httpx.post(url, json=body, timeout=timeout_s, trust_env=False)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_real_vllm_is_started_asked_and_adopted(fleet: Fleet) -> None:
    assert (HOME / "bin" / "vllm").exists(), "make test-vllm installs it"
    fleet.start("control", "agent")
    wait_for(
        lambda: (fleet.status() or {"settling": True})["settling"] is None, "a settled control"
    )
    wait_for(fleet.gateway_pid, "a gateway")
    seen: dict[str, float | None] = {}

    def up() -> dict[str, Any] | None:
        for replica in (fleet.status() or {"replicas": []})["replicas"]:
            for shard in replica["shards"]:
                seen[shard["state"]] = shard["progress"]
                assert shard["state"] != "failed", shard["error"]
        return next(iter(fleet.replicas("tiny")), None)

    with ThreadPoolExecutor() as clients:
        waking = clients.submit(ask, fleet, START_S)
        (shard,) = wait_for(up, "vLLM ready", START_S)["shards"]
        said = waking.result()
    assert (said["model"], said["usage"]["completion_tokens"]) == ("tiny", 4)
    # It refuses connections all the while; that it loads, and how far it is, is in its log.
    assert seen["loading"] == 1.0
    assert shard["compute"]["device"] == "cpu"

    pid, ticks = shard["pid"], start_ticks(shard["pid"])
    agent = fleet.life("agent")
    fleet.kill("agent")
    assert ask(fleet)["usage"]["completion_tokens"] == 4
    fleet.start("agent")
    fleet.back("agent", agent)
    (adopted,) = fleet.ready("tiny")["shards"]
    assert (adopted["pid"], start_ticks(pid)) == (pid, ticks)
    assert adopted["compute"]["device"] == "cpu"
    assert ask(fleet)["usage"]["completion_tokens"] == 4

    # All of its processes end with one TERM, workers among them.
    assert len(fleet.engines()) > 1
    stopped = fleet.llmgw("stop", "tiny", "--yes", timeout_s=120)
    assert stopped.returncode == 0, stopped.stderr
    wait_for(lambda: not fleet.engines(), "the end of all its processes")
