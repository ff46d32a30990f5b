"""GPUs in real agent processes, through the real binding and the fake library; files of facts; no GPU at all."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from llmgw.agent.gpu import GpuFileError, Gpus, Reading, nvidia_card
from llmgw.core.types.catalog import Restart
from llmgw.core.types.messages import Gpu, Resources
from tests.agent.cards import GIB, UUIDS, Cards
from tests.agent.rig import Rig, alive, gpu_users

#: GPUs are read once a heartbeat.
BEAT_S = 0.25


@pytest.fixture
def gpu_rig(tmp_path: Path, cards: Cards) -> Iterator[Rig]:
    rig = Rig(tmp_path, gpus="auto", world={"beat_s": BEAT_S})
    rig.start_agent(**cards.env).registered()
    yield rig
    rig.close()


def test_no_driver_is_no_gpu_unless_a_card_is_there(tmp_path: Path) -> None:
    """F59: unknown is not none."""
    assert Gpus("none").read() == Reading(())
    assert Gpus("auto", tmp_path).read() == Reading(())
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x0c0330\n")  # its USB controller
    assert not nvidia_card(tmp_path)
    (device / "class").write_text("0x030200\n")
    gpus = Gpus("auto", tmp_path)
    (first, again) = gpus.read(), gpus.read()
    assert first == again == Reading(None, error=first.error)
    assert first.error.startswith("an NVIDIA card is here, its driver does not answer: ")
    had = Gpus("auto", tmp_path / "none")
    had.cards = {"GPU-0": Gpu(uuid="GPU-0")}
    assert had.read().gpus is None  # its driver went away
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").write_text("")
    assert nvidia_card(tmp_path)


def test_a_file_of_facts(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    path.write_text('[{"uuid": "GPU-0", "memory": 10, "memory_used": 4}]')
    reading = Gpus(str(path)).read()
    assert reading == Reading(
        (Gpu(uuid="GPU-0", memory_bytes=10, memory_used_bytes=4),), measured=True
    )
    running = Gpus(str(path))
    good = path.read_bytes()
    for bad in (b"{}", b"", b"\xff", None):
        path.unlink() if bad is None else path.write_bytes(bad)
        unknown = running.read()
        assert (unknown.gpus, str(path) in unknown.error) == (
            None,
            True,
        )  # F59, and no end of the agent
    path.write_bytes(good)
    assert running.read() == reading
    path.write_text("{}")
    with pytest.raises(GpuFileError, match="not a"):
        Gpus(str(path))
    with pytest.raises(GpuFileError, match="No such file"):
        Gpus(str(tmp_path / "none.json"))


def test_engines_get_their_gpus_by_uuid_and_share_by_memory(gpu_rig: Rig) -> None:
    assert [g["uuid"] for g in gpu_rig.control.registers[0]["gpus"]] == list(UUIDS)
    half = Resources(gpu_memory_bytes=12 * GIB)
    shard = gpu_rig.ready(1, gpus=UUIDS[1:], resources=half)
    env = Path(f"/proc/{shard['pid']}/environ").read_bytes()
    assert f"CUDA_VISIBLE_DEVICES={UUIDS[1]}".encode() in env
    gpu_rig.ready(2, gpus=UUIDS[1:], resources=half)
    gpu_rig.start(3, gpus=UUIDS[1:], resources=half)
    refusal = gpu_rig.control.refusal("gpu_held")
    assert refusal["resource"] == f"gpu {UUIDS[1]}"
    assert "alpha-1/0 (inc-1" in refusal["why"]


def test_strangers_are_seen_counted_and_left_alone(gpu_rig: Rig, cards: Cards) -> None:
    """A70, F74: an engine that somebody started by hand."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        cards.use(0, 20 * GIB, (stranger.pid, 20 * GIB))
        ours = gpu_rig.ready(1, gpus=UUIDS[1:])
        cards.use(1, 5 * GIB, (ours["pid"], 5 * GIB))
        foreign = gpu_rig.control.wait(
            lambda: next((found for e in gpu_rig.control.events if (found := gpu_users(e))), None),
            "foreign",
        )
        assert [(f["pid"], f["gpu"], f["memory"]) for f in foreign] == [
            (stranger.pid, UUIDS[0], 20 * GIB)
        ]
        assert foreign[0]["command"] == "sleep 60"
        gpu_rig.start(2, gpus=UUIDS[:1])
        why = gpu_rig.control.refusal("gpu_held")["why"]
        assert f"pid {stranger.pid} (sleep 60) holds 20.0 GiB" in why
        assert stranger.poll() is None
        stranger.kill()


def test_a_driver_that_is_not_up_fails_nobody(tmp_path: Path, cards: Cards) -> None:
    """F59: the agent restarts before its driver is up: devices unknown, engines go on, nothing new is started."""
    rig = Rig(tmp_path, gpus="auto", world={"card": True, "beat_s": BEAT_S})
    rig.start_agent(**cards.env).registered()
    try:
        pid = rig.ready(1, gpus=UUIDS[:1])["pid"]
        rig.kill9()
        cards.write(init_error=9)
        rig.start_agent(**cards.env).registered(2)
        report = rig.control.registers[-1]
        assert report["gpus"] is None
        assert [(s["state"], s["pid"]) for s in report["shards"]] == [("ready", pid)]
        rig.start(2, gpus=UUIDS[1:])
        assert rig.control.refusal("devices_unknown")["resource"] == f"gpu {UUIDS[1]}"
        cards.write()
        rig.control.wait(lambda: rig.control.events[-1]["gpus"], "the GPUs")
        assert rig.control.shards["alpha-1/0"]["state"] == "ready"
    finally:
        rig.close()


def test_a_gpu_is_free_only_when_its_memory_is_back(gpu_rig: Rig, cards: Cards) -> None:
    """F68: the process is gone, NVML still shows its memory; a new start of that GPU right after is not refused."""
    shard = gpu_rig.ready(1, gpus=UUIDS[:1])
    cards.use(0, 9 * GIB, (shard["pid"], 9 * GIB))
    gpu_rig.stop()
    gpu_rig.control.shard("alpha-1/0", "stopping")
    gpu_rig.start(2, gpus=UUIDS[:1])
    assert "alpha-1/0" in gpu_rig.control.refusal("gpu_held")["why"]
    assert not alive(shard["pid"])
    cards.use(0, 0)
    gpu_rig.control.shard("alpha-1/0", "stopped")
    gpu_rig.ready(3, gpus=UUIDS[:1])


def test_an_engine_on_a_lost_gpu_fails_after_a_probe(gpu_rig: Rig, cards: Cards) -> None:
    """F72: others are not touched."""
    fine = gpu_rig.ready(1, gpus=UUIDS[:1])
    gpu_rig.ready(2, "--die-after", "1", gpus=UUIDS[1:], restart=Restart(max=0))
    cards.lose()

    def lost() -> bool:
        gpus = gpu_rig.control.events[-1]["gpus"] if gpu_rig.control.events else []
        return not any(g["uuid"] == UUIDS[1] and g["healthy"] for g in gpus)

    gpu_rig.control.wait(lost, "the loss")
    assert gpu_rig.control.shards["alpha-2/0"]["state"] == "ready"
    endpoint = gpu_rig.control.shards["alpha-2/0"]["endpoint"]
    httpx.post(f"{endpoint}/set", json={"health_status": 500}, trust_env=False)
    assert "is lost" in gpu_rig.control.shard("alpha-2/0", "failed")["error"]
    assert alive(fine["pid"])


def said_why(rig: Rig) -> str:
    return str(rig.control.events[-1]["gpus_error"]) if rig.control.events else ""


def test_f59_nvml_away_while_engines_run_and_back(gpu_rig: Rig, cards: Cards) -> None:
    """A daemon-reload takes a container's devices away: nothing ends, nothing starts, and it comes back by itself."""
    shard = gpu_rig.ready(1, gpus=UUIDS[:1])
    cards.set(0, 1, error=999)
    cards.write(init_error=999)
    gpu_rig.control.wait(lambda: said_why(gpu_rig), "unknown devices")
    assert "systemctl daemon-reload" in said_why(gpu_rig)
    gpu_rig.start(2, gpus=UUIDS[1:])
    assert "Unknown Error" in gpu_rig.control.refusal("devices_unknown")["why"]
    time.sleep(5 * BEAT_S)
    cards.set(0, 1, error=None)
    gpu_rig.control.wait(lambda: not said_why(gpu_rig), "the GPUs again")
    assert gpu_rig.control.shards["alpha-1/0"]["state"] == "ready"
    assert alive(shard["pid"])
    gpu_rig.ready(3, gpus=UUIDS[1:])


def test_f71_an_engine_is_pinned_by_uuid_and_kept_when_numbers_move(
    gpu_rig: Rig, cards: Cards
) -> None:
    shard = gpu_rig.ready(1, gpus=UUIDS[1:])
    cards.use(1, 9 * GIB, (shard["pid"], 9 * GIB))
    cards.gpus.reverse()
    cards.write()
    gpu_rig.control.wait(
        lambda: any(
            (g["uuid"], g["index"]) == (UUIDS[1], 0)
            for e in gpu_rig.control.events
            for g in e["gpus"] or ()
        ),
        "the new numbers",
    )
    gpu_rig.start(2, gpus=UUIDS[1:])
    assert "alpha-1/0" in gpu_rig.control.refusal("gpu_held")["why"]
    assert not [e for e in gpu_rig.control.events if gpu_users(e)]
    env = Path(f"/proc/{gpu_rig.ready(3, gpus=UUIDS[:1])['pid']}/environ").read_bytes()
    assert f"CUDA_VISIBLE_DEVICES={UUIDS[0]}\0".encode() in env


def test_a_mig_device_is_given_like_a_gpu(tmp_path: Path, cards: Cards) -> None:
    parts = [{"uuid": f"MIG-{i}", "mem_total": 5 * GIB} for i in range(2)]
    cards.set(0, mig=1, mig_devices=parts)
    rig = Rig(tmp_path, gpus="auto", world={"beat_s": BEAT_S})
    rig.start_agent(**cards.env).registered()
    try:
        assert [g["uuid"] for g in rig.control.registers[0]["gpus"]] == [UUIDS[1], "MIG-0", "MIG-1"]
        shard = rig.ready(1, gpus=("MIG-1",))
        env = Path(f"/proc/{shard['pid']}/environ").read_bytes()
        assert b"CUDA_VISIBLE_DEVICES=MIG-1\0" in env
        rig.start(2, gpus=UUIDS[:1])
        assert rig.control.refusal("no_such_gpu")["resource"] == f"gpu {UUIDS[0]}"
        rig.start(3, gpus=("MIG-0",), resources=Resources(gpu_memory_bytes=6 * GIB))
        assert "5.0 of 5.0 GiB free" in rig.control.refusal("gpu_held")["why"]
    finally:
        rig.close()


def test_memory_errors_take_no_new_work_and_leave_what_runs(gpu_rig: Rig, cards: Cards) -> None:
    shard = gpu_rig.ready(1, gpus=UUIDS[:1], resources=Resources(gpu_memory_bytes=GIB))
    cards.set(0, ecc=2)
    gpu_rig.control.wait(
        lambda: gpu_rig.control.events and not gpu_rig.control.events[-1]["gpus"][0]["healthy"],
        "the bad memory",
    )
    gpu_rig.start(2, gpus=UUIDS[:1], resources=Resources(gpu_memory_bytes=GIB))
    assert "not healthy: 2 memory errors were not" in gpu_rig.control.refusal("gpu_held")["why"]
    httpx.post(f"{shard['endpoint']}/set", json={"health_status": 500}, trust_env=False)
    gpu_rig.control.shard("alpha-1/0", "unhealthy")  # by k of n, as everywhere
    assert alive(shard["pid"])


def test_f73_what_ours_hold_beyond_what_they_were_given_is_told_and_counted(
    gpu_rig: Rig, cards: Cards
) -> None:
    """One took more of its GPU than it was given, and some of one that it was not given at all."""
    ten = Resources(gpu_memory_bytes=10 * GIB)
    shard = gpu_rig.ready(1, gpus=UUIDS[:1], resources=ten)
    cards.use(0, 13 * GIB, (shard["pid"], 13 * GIB))
    cards.use(1, 2 * GIB, (shard["pid"], 2 * GIB))
    foreign = gpu_rig.control.wait(
        lambda: next((f for e in gpu_rig.control.events if len(f := gpu_users(e)) > 1), None),
        "both",
    )
    assert [(f["shard"], f["gpu"], f["memory"]) for f in foreign] == [
        ("alpha-1/0", UUIDS[0], 3 * GIB),
        ("alpha-1/0", UUIDS[1], 2 * GIB),
    ]
    gpu_rig.start(2, gpus=UUIDS[:1], resources=Resources(gpu_memory_bytes=12 * GIB))
    why = gpu_rig.control.refusal("gpu_held")["why"]
    assert "11.0 of 24.0 GiB free" in why
    assert "alpha-1/0 holds 3.0 GiB beyond what it was given" in why
    assert alive(shard["pid"])


def test_f68_memory_that_returns_5_s_late_holds_the_gpu_until_then(
    gpu_rig: Rig, cards: Cards
) -> None:
    """The whole tree is gone and NVML goes on listing it (llama-swap#97): nothing else starts there meanwhile."""
    shard = gpu_rig.ready(1, gpus=UUIDS[:1])
    cards.use(0, 20 * GIB, (shard["pid"], 20 * GIB))
    gpu_rig.stop()
    gpu_rig.control.shard("alpha-1/0", "stopping")
    time.sleep(5)
    assert not alive(shard["pid"])
    assert gpu_rig.control.shards["alpha-1/0"]["state"] == "stopping"
    gpu_rig.start(2, gpus=UUIDS[:1])
    assert "alpha-1/0" in gpu_rig.control.refusal("gpu_held")["why"]
    cards.use(0, 0)
    gpu_rig.control.shard("alpha-1/0", "stopped")
    gpu_rig.ready(3, gpus=UUIDS[:1])
