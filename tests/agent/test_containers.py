"""Engines in containers, with a real podman, real agents and real kill -9 (test-beds.md 4): F35-F47, A43, A67."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from llmgw.core.types.catalog import Restart, Stop
from scripts.ports import free_port
from tests.agent.container_bed import (
    IMAGE,
    NEEDED,
    WORLD,
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


# ---------------------------------------------------------------- start, adopt, stop


def test_it_starts_is_adopted_and_is_stopped(rig: Rig, podman: Bed) -> None:
    """F35, F47: the same container after kill -9 of the agent and no second one; TERM ends it, and it is removed."""
    rig.start_agent().registered()
    shard = podman_start(rig, 1, "--say", "hello from it", "--env", "LLMGW_SHARD")
    box = podman.box()
    assert box["State"]["Pid"] == shard["pid"]
    assert box["Config"]["Labels"]["llmgw.shard"] == "alpha-1/0"
    assert box["Config"]["Labels"]["llmgw.node"] == rig.control.registers[-1]["node_id"]
    assert httpx.get(f"{shard['endpoint']}/health", trust_env=False).status_code == 200
    rig.kill9().again()
    again = rig.control.registers[-1]["shards"][0]
    assert (again["pid"], again["attempt"]) == (shard["pid"], 1)
    rig.control.shard("alpha-1/0", "ready")
    assert podman.box()["Id"] == box["Id"]
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert podman.boxes() == []
    expected = ["hello from it", "LLMGW_SHARD=alpha-1/0", f"listening on {shard['port']}"]
    assert words(rig) == [*expected, "ends by TERM"]


def test_it_sees_of_the_host_what_its_profile_says(rig: Rig, podman: Bed, tmp_path: Path) -> None:
    """`mounts`: a hub's cache to write into, files to read; commas, quotes and colons in their names included."""
    del podman
    odd, cache = tmp_path / 'odd, "name"', tmp_path / "cache"
    for folder in (odd, cache):
        folder.mkdir()
    (odd / "word").write_text("from the host\n")
    rig.start_agent(ODD=str(odd)).registered()
    flags = ("--read", "/seen/word", "--write", "/seen/new", "--write", "/cache/new")
    podman_start(rig, 1, *flags, mounts=("${env.ODD}:/seen:ro", f"{cache}:/cache"))
    assert words(rig)[:3] == ["read from the host", "may not write", "written"]
    assert (cache / "new").exists()
    rig.start(2, **boxed(mounts=(f"{tmp_path}/none:/x",)))
    error = rig.control.shard("alpha-2/0", "failed")["error"]
    assert f"mount {tmp_path}/none:/x: its source is not there on box1" in error


def test_what_ignores_term_is_killed_with_all_that_is_in_it(rig: Rig, podman: Bed) -> None:
    """F65: a child in a session of its own too; seen gone before it counts as stopped."""
    rig.start_agent().registered()
    podman_start(rig, 1, "--ignore-term", "--fork", stop=Stop(grace_s=0.3))
    pids = rig.engine_pids()
    assert len(pids) == 2
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert not any(alive(pid) for pid in pids)
    assert podman.boxes() == []
    assert "ends by TERM" not in words(rig)


def test_a_tear_down_goes_on_after_the_agents_death(rig: Rig, podman: Bed) -> None:
    """F36, law 2: one TERM, then the grace from anew, then KILL."""
    rig.start_agent("after-Signal-TERM").registered()
    pid = podman_start(rig, 1, "--ignore-term", stop=Stop(grace_s=0.3))["pid"]
    rig.stop()
    rig.crashed().again()
    rig.control.shard("alpha-1/0", "stopped")
    assert not alive(pid)
    assert podman.boxes() == []


def test_what_is_frozen_is_stopped_too(rig: Rig, podman: Bed) -> None:
    """A paused container hears no signal, not even KILL, where its freezer is the old one."""
    rig.start_agent().registered()
    podman_start(rig)
    podman.podman("pause", podman.box()["Id"])
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert podman.boxes() == []
    assert "ends by TERM" in words(rig)


@pytest.mark.usefixtures("door")
def test_by_its_runtimes_word_alone(tmp_path: Path, podman: Bed) -> None:
    """An agent that is not root does not see into root's containers: it adopts, restarts and stops all the same."""
    rig = Rig(tmp_path, world={**WORLD, "blind": True})
    try:
        rig.start_agent().registered()
        first = podman_start(rig, restart=Restart(max=2, backoff_s=0.1))["pid"]
        rig.kill9().again()
        assert rig.control.shard("alpha-1/0", "ready")["pid"] == first
        os.kill(first, signal.SIGKILL)
        rig.control.wait(lambda: rig.control.shards["alpha-1/0"]["attempt"] == 2, "attempt 2")
        second = rig.control.shard("alpha-1/0", "ready")["pid"]
        assert rig.record()["start_ticks"] == 0
        rig.stop()
        rig.control.shard("alpha-1/0", "stopped")
        assert podman.boxes() == []
        assert not alive(second)
    finally:
        rig.close()


# ---------------------------------------------------------------- ends


def test_an_end_is_told_with_its_code_and_started_again(rig: Rig, podman: Bed) -> None:
    """A67, F80: also after a restart of the agent, which is nobody's parent then; the old container is removed."""
    rig.start_agent().registered()
    first = podman_start(rig, restart=Restart(max=2, backoff_s=0.1))["pid"]
    rig.kill9().again()
    os.kill(first, signal.SIGKILL)
    rig.control.wait(
        lambda: (
            rig.control.shards["alpha-1/0"]["attempt"] == 2
            and rig.control.shards["alpha-1/0"]["state"] == "ready"
        ),
        "attempt 2",
    )
    second = rig.control.shards["alpha-1/0"]["pid"]
    assert podman.box()["Config"]["Labels"]["llmgw.attempt"] == "2"
    os.kill(second, signal.SIGKILL)
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert error.startswith("gave up after 2 in 30m: killed by signal 9 (SIGKILL")
    assert podman.boxes() == []


def test_one_that_ends_at_once(rig: Rig, podman: Bed) -> None:
    rig.start_agent().registered()
    rig.start(1, **boxed("--say", "no model here", "--exit", "7"), restart=NEVER)
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert error == "exited with code 7: no model here"
    assert podman.boxes() == []


def test_an_end_that_nobody_watched(rig: Rig, podman: Bed) -> None:
    """F37: not started again; its runtime remembers how it ended."""
    rig.start_agent().registered()
    pid = podman_start(rig)["pid"]
    rig.kill9()
    os.kill(pid, signal.SIGTERM)
    until(lambda: podman.box()["State"]["Status"] == "exited", "its end")
    rig.again()
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert error == (
        "not running when the agent came back: its container exited with code 0; nobody saw it exit"
    )
    until(lambda: podman.boxes() == [], "no container")


def test_a_runtime_that_lost_sight_of_it_is_not_believed(rig: Rig, podman: Bed) -> None:
    """F65: its watcher (conmon) was killed too, so podman says for ever that it runs; /proc knows better."""
    rig.start_agent().registered()
    pid = podman_start(rig, restart=NEVER)["pid"]
    box = podman.box()
    os.kill(box["State"]["ConmonPid"], signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    assert rig.control.shard("alpha-1/0", "failed")["error"].startswith("exited, ")
    until(lambda: podman.boxes() == [], "no container")
    podman.no_cgroup(box["Id"])


# ---------------------------------------------------------------- never two, never a stranger


def test_killed_between_its_start_and_the_journal(rig: Rig, podman: Bed) -> None:
    """F43: found by its labels, and none is started twice."""
    rig.start_agent("after-Spawn").registered()
    rig.start(1, **boxed())
    rig.crashed()
    assert rig.record()["intent"]
    box = podman.box()
    rig.again()
    shard = rig.control.shard("alpha-1/0", "ready")
    assert (shard["pid"], shard["attempt"]) == (box["State"]["Pid"], 1)
    assert podman.box()["Id"] == box["Id"]


def test_killed_while_podman_is_starting_it(rig: Rig, podman: Bed, door: Door) -> None:
    """F43: podman goes on without us; what it is just making is held, not judged, then found."""
    door.hold("run")
    rig.start_agent().registered()
    rig.start(1, **boxed())
    until(lambda: door.waiting("run"), "podman run")
    rig.kill9().again()
    found = rig.control.registers[-1]["shards"][0]
    assert found["state"] == "unknown"
    assert "podman is just making its container" in found["error"]
    door.let_go("run")
    shard = rig.control.shard("alpha-1/0", "ready")
    assert shard["pid"] == podman.box()["State"]["Pid"]


def test_a_container_without_a_record_is_taken_up_whole(rig: Rig, podman: Bed) -> None:
    """design.md 3: LLMGW_START in its environment; then stopped like any other."""
    rig.start_agent().registered()
    before = podman_start(rig)
    rig.kill9()
    shutil.rmtree(rig.state_dir / "records")
    rig.again()
    after = rig.control.shard("alpha-1/0", "ready")
    same = ("pid", "port", "attempt", "model", "profile", "incarnation")
    assert [after[name] for name in same] == [before[name] for name in same]
    record = rig.record()
    assert (record["start"]["launcher"], record["start"]["image"]) == ("podman", IMAGE)
    assert (record["start"]["command"], record["partial"]) == (["--port", "${port}"], False)
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert podman.boxes() == []


def by_hand(podman: Bed, port: int, **labels: str) -> str:
    """A container that somebody else made, as far as its labels go."""
    own = {"shard": "alpha-1/0", "incarnation": "inc-1", "attempt": "1", **labels}
    args = [f"--label=llmgw.{name}={value}" for name, value in own.items()]
    env = ["--env=LLMGW_MODEL=alpha", "--env=LLMGW_PROFILE=main", f"--env=LLMGW_PORT={port}"]
    run = ("run", "--detach", "--network", "host", *args, *env)
    return podman.podman(*run, IMAGE, "--port", str(port)).strip()


def test_one_without_a_whole_order_is_taken_up_and_not_started_again(rig: Rig, podman: Bed) -> None:
    """As an older agent's: by its labels and plain markers; what it was started with is not known."""
    rig.start_agent().registered()
    podman_start(rig, 2)
    node = rig.control.registers[-1]["node_id"]
    rig.kill9()
    port = free_port()
    by_hand(podman, port, node=node)
    rig.again()
    shard = rig.control.shard("alpha-1/0", "ready")
    assert (shard["model"], shard["port"]) == ("alpha", port)
    assert rig.record()["partial"]
    os.kill(shard["pid"], signal.SIGKILL)
    assert "signal 9" in rig.control.shard("alpha-1/0", "failed")["error"]
    assert rig.starts() <= {1}


def test_strangers_are_not_touched(rig: Rig, podman: Bed) -> None:
    """F38, F40: a container of nobody, and one of another node that has the same shard's name."""
    other = by_hand(podman, free_port(), node="another-node")
    ended = podman.podman("run", "--detach", IMAGE, "--exit", "3").strip()
    rig.start_agent().registered()
    podman_start(rig)
    rig.kill9().again()
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    rig.forget()
    rig.control.wait(lambda: rig.control.gone, "gone")
    rig.kill9().again()
    assert rig.control.registers[-1]["shards"] == []
    left = {box["Id"]: box["State"]["Status"] for box in podman.boxes()}
    assert left == {other: "running", ended: "exited"}


def test_a_copy_of_an_engines_container_is_a_strangers(rig: Rig, podman: Bed) -> None:
    """`podman commit` keeps labels and environment: what is run of that image carries all our words, and is not ours.

    It is not adopted, signalled or removed, whether ours runs, is stopped or is forgotten (F74).
    """
    rig.start_agent().registered()
    shard = podman_start(rig)
    ours = podman.box()["Id"]
    podman.podman("commit", ours, "localhost/copy:1")
    run = ("run", "--detach", "--network", "host", "localhost/copy:1")
    copy = podman.podman(*run, "--port", str(free_port())).strip()
    rig.kill9().again()
    (found,) = rig.control.registers[-1]["shards"]
    assert (found["pid"], found["attempt"]) == (shard["pid"], 1)
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert {b["Id"]: b["State"]["Status"] for b in podman.boxes()} == {copy: "running"}
    rig.forget()
    rig.control.wait(lambda: rig.control.gone, "gone")
    rig.kill9().again()
    assert rig.control.registers[-1]["shards"] == []
    assert podman.box()["State"]["Status"] == "running"


def test_an_image_made_of_an_engines_container_may_be_an_engines_own(rig: Rig, podman: Bed) -> None:
    """Its labels are older ones of ours: those of the container itself count."""
    rig.start_agent().registered()
    podman_start(rig)
    podman.podman("commit", podman.box()["Id"], "localhost/tuned:1")
    shard = podman_start(rig, 2, image="localhost/tuned:1")
    rig.kill9().again()
    pids = {s["shard"]: s["pid"] for s in rig.control.registers[-1]["shards"]}
    assert pids["alpha-2/0"] == shard["pid"]
    rig.stop(2)
    rig.control.shard("alpha-2/0", "stopped")


def test_renamed_and_then_removed_by_somebody(rig: Rig, podman: Bed) -> None:
    """Known by its labels, not by its name; gone it has failed, and is started again."""
    rig.start_agent().registered()
    shard = podman_start(rig, restart=Restart(max=2, backoff_s=0.1))
    podman.podman("rename", podman.box()["Id"], "mine-now")
    rig.kill9().again()
    assert rig.control.registers[-1]["shards"][0]["pid"] == shard["pid"]
    podman.podman("rm", "--force", "--time", "0", "mine-now")
    again = rig.control.shard("alpha-1/0", "ready", attempt=2)
    assert again["pid"] != shard["pid"]
    assert len(podman.boxes()) == 1


def test_restarted_by_somebody(rig: Rig, podman: Bed) -> None:
    """Its end may be seen, or its new process first: one container is left, and its process is the one that is told."""
    rig.start_agent().registered()
    shard = podman_start(rig, restart=Restart(max=3, backoff_s=0.1))
    # Its output is whoever starts it's: here nobody's.
    command = ["podman", "restart", "--time", "0", podman.box()["Id"]]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def settled() -> bool:
        pids = [b["State"]["Pid"] for b in podman.boxes() if b["State"]["Running"]]
        now = rig.control.shards["alpha-1/0"]
        return now["state"] == "ready" and pids == [now["pid"]] != [shard["pid"]]

    until(settled, "one container, known", 40)
    told = rig.control.shards["alpha-1/0"]
    rig.kill9().again()
    (found,) = rig.control.registers[-1]["shards"]
    assert (found["pid"], found["attempt"]) == (told["pid"], told["attempt"])


def test_what_nobody_waits_for_is_removed(rig: Rig, podman: Bed) -> None:
    """Of ours, without a record: an ended one at once, one that was made and never started after a grace."""
    rig.start_agent().registered()
    podman_start(rig, 2)
    node = rig.control.registers[-1]["node_id"]
    rig.kill9()
    for shard in ("alpha-7/0", "alpha-8/0"):
        own = f"--label=llmgw.node={node}", f"--label=llmgw.shard={shard}"
        verb = "run" if shard == "alpha-7/0" else "create"
        podman.podman(verb, *own, "--label=llmgw.incarnation=inc-9", IMAGE, "--exit", "0")
    rig.again()
    until(lambda: len(podman.boxes()) == 1, "the running one alone")
    assert [s["shard"] for s in rig.control.registers[-1]["shards"]] == ["alpha-2/0"]


def test_an_unreadable_record_is_found_by_its_container(rig: Rig, podman: Bed) -> None:
    """A39: the name of the file and the container's labels are enough."""
    rig.start_agent().registered()
    pid = podman_start(rig)["pid"]
    rig.kill9()
    rig.record_path().write_text("{")
    rig.again()
    shard = rig.control.shard("alpha-1/0", "ready")
    assert (shard["pid"], shard["model"]) == (pid, "alpha")
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert podman.boxes() == []
