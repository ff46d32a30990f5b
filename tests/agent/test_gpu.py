"""GPUs through the real binding and the fake library, in real agent processes; files of facts; no GPU at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.agent.gpu import GpuFileError, Gpus, Reading, nvidia_card
from llmgw.core.types.catalog import Restart
from llmgw.core.types.messages import Gpu, Resources
from tests.agent.rig import ROOT, Rig, alive
from tests.engines import fake_nvml

GIB = 1 << 30
#: GPUs are read once a heartbeat.
BEAT_S = 0.25
UUIDS = ("GPU-aaaa", "GPU-bbbb")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    why = fake_nvml.why_not()
    if why:
        pytest.skip(why)
    folder = fake_nvml.build(tmp_path_factory.mktemp("nvml"))
    assert folder is not None
    return folder


class Cards:
    """Two 24 GiB cards in a file that the fake library reads again when it changes."""

    def __init__(self, path: Path, library: Path) -> None:
        self.path = path
        self.env = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_JSON": str(path)}
        self.gpus: list[dict[str, Any]] = [
            {"uuid": uuid, "mem_total": 24 * GIB, "mem_used": 0, "limit_mw": 300000, "procs": []}
            for uuid in UUIDS
        ]
        self.write()

    def write(self, **top: Any) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"gpus": self.gpus, **top}))
        new.rename(self.path)

    def use(self, index: int, used: int, *procs: tuple[int, int]) -> None:
        self.gpus[index]["mem_used"] = used
        self.gpus[index]["procs"] = [{"pid": pid, "mem": mem} for pid, mem in procs]
        self.write()


@pytest.fixture
def cards(tmp_path: Path, library: Path) -> Cards:
    return Cards(tmp_path / "gpus.json", library)


@pytest.fixture
def gpu_rig(tmp_path: Path, cards: Cards) -> Iterator[Rig]:
    rig = Rig(tmp_path, gpus="auto", world={"beat_s": BEAT_S})
    rig.start_agent(**cards.env).registered()
    yield rig
    rig.close()


def read(cards: Cards, then: str = "") -> list[Any]:
    """What a process with the fake library reads, after each line that it is given."""
    program = (
        "import json, sys; from llmgw.agent.gpu import Gpus; import msgspec\n"
        "g = Gpus('auto')\n"
        "for line in sys.stdin: print(msgspec.json.encode(g.read()).decode(), flush=True)"
    )
    env = {**os.environ, **cards.env, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        out = []
        for step in ("", *then.split()):
            if step:
                getattr(sys.modules[__name__], step)(cards)
            child.stdin.write("read\n")
            child.stdin.flush()
            out.append(json.loads(child.stdout.readline()))
        child.stdin.close()
    return out


def lose(cards: Cards) -> None:
    cards.gpus[1]["error"] = 15
    cards.write()


def find(cards: Cards) -> None:
    del cards.gpus[1]["error"]
    cards.write()


def test_facts_of_a_card(cards: Cards) -> None:
    cards.use(0, 3 * GIB, (os.getpid(), 2 * GIB))
    ((gpus, uses, measured),) = read(cards)
    assert measured
    assert [g["uuid"] for g in gpus] == list(UUIDS)
    first = gpus[0]
    assert (first["memory"], first["memory_used"], first["healthy"]) == (24 * GIB, 3 * GIB, True)
    assert (first["pci"], first["driver"], first["power_limit_w"]) == (
        "00000000:01:00.0",
        "570.86.15",
        300.0,
    )
    assert first["compute_capability"] == "9.0"
    assert uses == [[os.getpid(), UUIDS[0], 2 * GIB]]


def test_a_card_that_is_lost_and_found_again(cards: Cards) -> None:
    """F72: one card lost is that card's trouble."""
    seen = read(cards, then="lose find")
    health = [[(g["uuid"], g["healthy"]) for g in reading[0]] for reading in seen]
    assert health[0] == health[2] == [(UUIDS[0], True), (UUIDS[1], True)]
    assert health[1] == [(UUIDS[0], True), (UUIDS[1], False)]


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
    assert gpus.read() == gpus.read() == Reading(None)
    had = Gpus("auto", tmp_path / "none")
    had.cards = {"GPU-0": Gpu(uuid="GPU-0")}
    assert had.read() == Reading(None)  # its driver went away
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
        assert running.read() == Reading(None)  # F59: unknown, and no end of the agent
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
            lambda: next((e["foreign"] for e in gpu_rig.control.events if e["foreign"]), None),
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
    lose(cards)

    def lost() -> bool:
        gpus = gpu_rig.control.events[-1]["gpus"] if gpu_rig.control.events else []
        return not any(g["uuid"] == UUIDS[1] and g["healthy"] for g in gpus)

    gpu_rig.control.wait(lost, "the loss")
    assert gpu_rig.control.shards["alpha-2/0"]["state"] == "ready"
    endpoint = gpu_rig.control.shards["alpha-2/0"]["endpoint"]
    httpx.post(f"{endpoint}/set", json={"health_status": 500}, trust_env=False)
    assert "is lost" in gpu_rig.control.shard("alpha-2/0", "failed")["error"]
    assert alive(fine["pid"])
