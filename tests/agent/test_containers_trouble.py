"""Containers whose agent lost its folder, or whose runtime is away or refuses: what is held and said (F45).

And what is given to an engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llmgw.core.types.catalog import Restart
from scripts.ports import free_port
from tests.agent.container_bed import (
    IMAGE,
    NEEDED,
    Bed,
    Door,
    boxed,
    door,
    podman,
    podman_start,
    rig,
    whole,
    words,
)
from tests.agent.rig import Rig, alive, until

__all__ = ["door", "podman", "rig", "whole"]
pytestmark = NEEDED
NEVER = Restart(max=0)


def test_a1_its_agents_folder_is_lost(rig: Rig, podman: Bed) -> None:
    """The new agent is who the container says, 0 starts and 0 stops; a copy of it tells nothing."""
    rig.start_agent().registered()
    shard = podman_start(rig)
    box = podman.box()["Id"]
    podman.podman("commit", box, "localhost/copy:1")
    run = ("run", "--detach", "--network", "host", "localhost/copy:1")
    copy = podman.podman(*run, "--port", str(free_port())).strip()
    rig.kill9()
    shutil.rmtree(rig.state_dir)
    rig.again()
    first, again = rig.control.registers[0], rig.control.registers[-1]
    assert again["node_id"] == first["node_id"]
    assert [(s["pid"], s["attempt"]) for s in again["shards"]] == [(shard["pid"], 1)]
    assert {b["Id"]: b["State"]["Status"] for b in podman.boxes()} == {
        box: "running",
        copy: "running",
    }


# ---------------------------------------------------------------- the runtime is away


def test_away_at_the_agents_start_is_unknown_and_held(rig: Rig, door: Door) -> None:
    """F45: nothing of it counts as gone, its port is held, and it goes on when podman answers again."""
    rig.start_agent().registered()
    shard = podman_start(rig)
    rig.kill9()
    door.away()
    rig.again()
    found = rig.control.registers[-1]["shards"][0]
    assert found["state"] == "unknown"
    assert "cannot be verified, so held: podman ps does not answer" in found["error"]
    rig.start(2, port=shard["port"])
    assert "alpha-1/0" in rig.control.refusal("port_held")["why"]
    door.back()
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == shard["pid"]


def test_away_during_a_stop(rig: Rig, podman: Bed, door: Door) -> None:
    """The signal goes by our own hand; it is over when podman says so, and not before."""
    rig.start_agent().registered()
    pid = podman_start(rig)["pid"]
    door.away()
    rig.stop()
    until(lambda: not alive(pid), "its end")
    rig.control.wait(
        lambda: "not provably" in (rig.control.shards["alpha-1/0"]["error"] or ""), "doubt"
    )
    assert rig.control.shards["alpha-1/0"]["state"] == "stopping"
    door.back()
    rig.control.shard("alpha-1/0", "stopped")
    assert podman.boxes() == []


def test_away_when_it_should_start(rig: Rig, door: Door) -> None:
    rig.start_agent().registered()
    door.away()
    rig.start(1, **boxed(), restart=NEVER)
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert error == "podman image inspect does not answer (exit code 125): Error: nobody answers"


# ---------------------------------------------------------------- errors say what to try


def failed(rig: Rig, **changes: Any) -> str:
    rig.start(1, **{**boxed(), "restart": NEVER, **changes})
    return str(rig.control.shard("alpha-1/0", "failed")["error"])


def test_no_such_image(rig: Rig, podman: Bed) -> None:
    rig.start_agent().registered()
    error = failed(rig, image="localhost:1/nobody/has:1")
    assert error.startswith("image localhost:1/nobody/has:1 is not on box1 and cannot be pulled: ")
    assert error.endswith(" - try podman pull localhost:1/nobody/has:1 there")
    assert podman.boxes() == []


def test_no_such_runtime(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    rig.start_agent().registered()
    assert failed(rig) == (
        "podman is not on the PATH of the agent on box1 - install podman there, or set another launcher"
    )


def test_a_gpu_that_has_no_name(rig: Rig, podman: Bed, tmp_path: Path) -> None:
    """CDI gives GPUs their names; without them podman knows none."""
    facts = tmp_path / "gpus.json"
    facts.write_text(json.dumps([{"uuid": "GPU-1", "index": 0, "memory": 1 << 34}]))
    rig.settings["gpus"] = str(facts)
    rig.start_agent().registered()
    error = failed(rig, gpus=("GPU-1",))
    assert "unresolvable CDI devices nvidia.com/gpu=GPU-1" in error
    assert error.endswith("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
    assert podman.boxes() == []


def test_no_such_program_in_the_image(rig: Rig, podman: Bed) -> None:
    rig.start_agent().registered()
    error = failed(rig, engine="llama.cpp", command=("llama-server",), restart=Restart())
    assert error.startswith(f"podman did not start {IMAGE}: Error: ")
    assert error.endswith(
        "give the profile a command whose program the image has, by its whole path"
    )
    assert podman.boxes() == []


def test_a_stop_ends_a_pull(rig: Rig, door: Door) -> None:
    """Before there is a container there is nothing to wait for."""
    door.hold("pull")
    rig.start_agent().registered()
    rig.start(1, **boxed(image="localhost:1/nobody/has:1"))
    until(lambda: door.waiting("pull"), "podman pull")
    rig.control.shard("alpha-1/0", "pending")
    assert "llmgw: podman pull localhost:1/nobody/has:1" in rig.engine_log()
    rig.stop()
    error = rig.control.shard("alpha-1/0", "stopped")["error"]
    assert error == "a stop was ordered during podman pull"
    until(lambda: not door.waiting("pull"), "the end of podman pull")


# ---------------------------------------------------------------- what is given to it


def test_its_runtime_is_killed_in_the_middle_of_a_start(rig: Rig, podman: Bed, door: Door) -> None:
    """F43: nothing was made, or something was: what counts is what is there. One container in the end."""
    rig.start_agent().registered()
    door.hold("run")
    rig.start(1, **boxed(restart=Restart(max=3, backoff_s=0.1)))
    until(lambda: door.waiting("run"), "podman run")
    door.let_go("run")
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((door.folder / "waits-run").read_text()), signal.SIGKILL)
    rig.control.shard("alpha-1/0", "ready")
    assert len(podman.boxes()) == 1
    assert podman.box()["State"]["Running"]


def test_no_secret_is_an_argument(rig: Rig, door: Door) -> None:
    """F50's kin: `ps` shows arguments to everybody; what the engine gets it gets whole."""
    rig.start_agent(TOKEN="the-secret-token").registered()
    env = {"HF_TOKEN": "${env.TOKEN}", "KEY": "${api_key}", "PATH": "/nowhere", "LINES": "a\nb = c"}
    flags = [word for name in env for word in ("--env", name)]
    podman_start(rig, 1, *flags, env=env)
    key = rig.record()["api_key"]
    said = words(rig)
    assert said[:5] == [
        "HF_TOKEN=the-secret-token",
        f"KEY={key}",
        "PATH=/nowhere",
        "LINES=a",
        "b = c",
    ]
    calls = door.calls()
    assert any(call.startswith("run ") for call in calls)
    assert not any("the-secret-token" in call or key in call for call in calls)
    assert "LLMGW_START" in subprocess.check_output(["podman", "inspect", "-l"], text=True)


def test_its_own_container_name(rig: Rig, podman: Bed) -> None:
    rig.start_agent().registered()
    podman_start(rig, 1, "--say", "${container_name}")
    assert words(rig)[0] == podman.box()["Name"] == "llmgw-alpha-1-0-inc-1-1"
