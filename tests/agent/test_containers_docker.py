"""`launcher: docker` by docker's own program, served by a podman: its options, its words, its logs (F35, F49).

What docker's daemon does in its own way (--gpus) is in test_container_start.py as far as words go.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.agent import process
from llmgw.agent.followers import FOLLOWS
from llmgw.core.types.catalog import Restart
from tests.agent.container_bed import IMAGE, NEEDED, Bed, bed, boxed, docker_door
from tests.agent.rig import Rig, alive, until
from tests.beds import needs

pytestmark = [NEEDED, needs("docker")]
WORLD = {"again_s": 0.3, "beat_s": 0.3}


@pytest.fixture
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with bed(tmp_path_factory.mktemp("docker")) as made:
        made.tiny()
        yield made


@pytest.fixture
def rig(tmp_path: Path, podman: Bed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with docker_door(podman) as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        rig = Rig(tmp_path, world=WORLD)
        yield rig
        rig.close()


def followers(box_id: str) -> list[int]:
    return [p for p in process.all_stats() if process.environ(p).get(FOLLOWS) == box_id]


def test_the_life_of_one(rig: Rig, podman: Bed) -> None:
    """Started, adopted, its log copied all the time, stopped and removed."""
    rig.start_agent().registered()
    shard = rig.ready(1, **boxed("--say", "hello", launcher="docker"))
    box = podman.box()
    assert box["State"]["Pid"] == shard["pid"]
    until(lambda: "listening on" in rig.engine_log(), "its words")
    (follower,) = followers(box["Id"])
    rig.kill9().again()
    assert rig.control.registers[-1]["shards"][0]["pid"] == shard["pid"]
    rig.control.shard("alpha-1/0", "ready")
    assert followers(box["Id"]) == [follower]
    os.kill(follower, signal.SIGKILL)
    until(lambda: [f for f in followers(box["Id"]) if f != follower], "another follower")
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert podman.boxes() == []
    until(lambda: followers(box["Id"]) == [], "the end of it")
    said = rig.engine_log().splitlines()
    assert said[0] == "hello"
    assert said.count("ends by TERM") == 1


def test_its_end_is_told_and_it_is_started_again(rig: Rig, podman: Bed) -> None:
    rig.start_agent().registered()
    first = rig.ready(1, **boxed(launcher="docker"), restart=Restart(max=2, backoff_s=0.1))["pid"]
    os.kill(first, signal.SIGKILL)
    rig.control.wait(lambda: rig.control.shards["alpha-1/0"]["attempt"] == 2, "attempt 2")
    second = rig.control.shard("alpha-1/0", "ready")["pid"]
    os.kill(second, signal.SIGTERM)
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert error == "gave up after 2 in 30m: exited with code 0: ends by TERM"
    assert podman.boxes() == []


def test_no_such_image_and_no_such_program(rig: Rig, podman: Bed) -> None:
    rig.start_agent().registered()
    once = Restart(max=0)
    rig.start(1, **boxed(launcher="docker", image="localhost:1/no/body:1"), restart=once)
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert error.endswith("try docker pull localhost:1/no/body:1 there")
    rig.start(2, **boxed(launcher="docker", engine="vllm", command=("vllm",)), restart=once)
    error = rig.control.shard("alpha-2/0", "failed")["error"]
    assert error.startswith(f"docker did not start {IMAGE}: docker: Error response from daemon")
    assert podman.boxes() == []


def test_the_daemon_is_away(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """F45: its own words for it; held, and taken up when it is back."""
    rig.start_agent().registered()
    pid = rig.ready(1, **boxed(launcher="docker"))["pid"]
    there = os.environ["DOCKER_HOST"]
    rig.kill9()
    rig.start_agent(DOCKER_HOST="unix:///nowhere.sock").registered(2)
    found = rig.control.registers[-1]["shards"][0]
    assert found["state"] == "unknown"
    assert "Cannot connect to the Docker daemon" in found["error"]
    assert alive(pid)
    rig.kill9()
    monkeypatch.setenv("DOCKER_HOST", there)
    rig.again()
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == pid
