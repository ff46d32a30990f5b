"""Engines whose record, or whose agent's identity, is gone: found by their markers, and whole again (design.md 3).

Real agents and engines; what markers hold is tests/agent/test_markers.py's.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx

from llmgw.core.types.catalog import Ready
from llmgw.core.types.messages import Resources
from scripts.ports import free_port
from tests.agent.rig import Rig
from tests.engines.running import FAKE

MINE: dict[str, Any] = {
    "fingerprint": "1:abc",
    "pool": "fast",
    "resources": Resources(host_memory_bytes=1 << 30, cpu_cores=0.5, power_w=7.0),
    "env": {"LLAMA_API_KEY": "${api_key}"},
    "served_name": "alpha-served",
}
#: Found again within the second it was started in, or the one after.
INEXACT = {"started_at"}


def shards(rig: Rig, *but: str) -> list[dict[str, Any]]:
    """What the last registration told of its shards."""
    left_out = INEXACT | set(but)
    told = rig.control.registers[-1]["shards"]
    return [{k: v for k, v in shard.items() if k not in left_out} for shard in told]


def test_an_engine_without_its_record_is_whole_again(rig: Rig) -> None:
    """A20, A21, A30: reported as it was started; A25, A67: started again in place, and no younger for it."""
    rig.start_agent().registered()
    weights = rig.folder / "a.gguf"
    weights.write_text("")
    before = rig.ready(weights=str(weights), **MINE)
    rig.kill9().again()
    known = shards(rig, "state")
    rig.kill9().record_path().unlink()
    rig.again()
    assert shards(rig, "state") == known
    found = rig.control.shard("alpha-1/0", "ready")
    assert (found["pid"], found["api_key"]) == (before["pid"], before["api_key"])
    assert (found["world_size"], found["artefact"]) == (1, str(weights))
    assert found["started_at"] >= before["started_at"]
    os.kill(found["pid"], signal.SIGKILL)
    second = rig.control.shard("alpha-1/0", "ready", attempt=2)
    for same in ("port", "api_key", "incarnation", "fingerprint", "started_at"):
        assert second[same] == found[same]
    env = Path(f"/proc/{second['pid']}/environ").read_bytes()
    assert f"LLAMA_API_KEY={before['api_key']}\0".encode() in env
    assert found["started_at"].encode() in env


def test_an_older_agents_engine_is_taken_up_and_not_started_again(rig: Rig) -> None:
    """Plain markers only: what they do not tell reads as unknown."""
    rig.start_agent().registered()
    rig.kill9()
    port = free_port()
    env = {
        **os.environ,
        "LLMGW_NODE_ID": rig.control.registers[0]["node_id"],
        "LLMGW_NODE": "box-then",  # another test's box1 has lost nothing
        "LLMGW_REPLICA": "alpha-1",
        "LLMGW_SHARD": "alpha-1/0",
        "LLMGW_INCARNATION": "inc-1",
        "LLMGW_ATTEMPT": "3",
        "LLMGW_MODEL": "alpha",
        "LLMGW_PROFILE": "main",
        "LLMGW_FINGERPRINT": "1:abc",
        "LLMGW_PORT": str(port),
    }
    with subprocess.Popen([*FAKE, "--port", str(port)], env=env, start_new_session=True) as engine:
        rig.again()
        shard = rig.control.shard("alpha-1/0", "ready")
        assert (shard["pid"], shard["attempt"]) == (engine.pid, 3)
        assert (shard["world_size"], shard["resources"], shard["pool"]) == (None, None, "")
        assert shard["started_at"]
        engine.kill()
    assert rig.control.shard("alpha-1/0", "failed")["attempt"] == 3


def test_an_identity_that_is_lost_with_the_records(rig: Rig) -> None:
    """Engines carry the node id: it is kept twice, so that the sweep finds them (A2: 0 starts, 0 stops).

    F54: the node may be renamed meanwhile, for the id is not the name.
    """
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    (rig.state_dir / "identity.json").unlink()
    rig.record_path().unlink()
    rig.settings["node"] = "box-renamed"
    rig.again()
    first, second = rig.control.registers
    assert second["node"] == "box-renamed"
    assert second["node_id"] == first["node_id"]
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == pid
    assert rig.starts() == {1}


def test_an_engine_that_does_not_answer_is_taken_up_unhealthy(rig: Rig) -> None:
    """F46: health is control's business; nothing is signalled from re-attach."""
    rig.start_agent().registered()
    shard = rig.ready(ready=Ready(failures=2, of=2))
    setting = {"health_status": 500}
    httpx.post(f"{shard['endpoint']}/set", json=setting, trust_env=False)
    rig.kill9().again()
    found = rig.control.shard("alpha-1/0", "unhealthy")
    assert (found["pid"], found["attempt"]) == (shard["pid"], 1)
    assert "HTTP 500" in found["error"]
    assert rig.engine_pids() == [shard["pid"]]
