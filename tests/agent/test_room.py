"""What a host has left when a start is ordered, and what an agent says of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.agent import room
from llmgw.core.types.messages import Resources, Start
from llmgw.core.types.node import Room
from tests.agent.rig import Rig

GIB = 1 << 30
START = Start(shard="alpha-1/0", replica="alpha-1", incarnation="i", model="alpha", profile="main")


def test_memory_and_disk_are_the_machines(tmp_path: Path) -> None:
    found = room.look(tmp_path)
    assert found.memory_bytes
    assert found.disk_bytes is not None
    assert 0 < found.disk_bytes <= found.disk_size_bytes
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  4 kB\n")
    assert room.look(tmp_path, tmp_path).memory_bytes == 4096


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert room.look(tmp_path / "none", tmp_path) == Room()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\n")
    assert room.look(tmp_path, tmp_path).memory_bytes is None


def test_weights_larger_than_memory_are_told(tmp_path: Path) -> None:
    """A CPU engine that maps them runs, slowly: a word, no refusal."""
    file = tmp_path / "weights" / "a.gguf"
    file.parent.mkdir()
    file.touch()
    os.truncate(file, 3 * GIB)
    start, small = replace(START, weights=str(file)), Room(memory_bytes=2 * GIB)
    said = room.too_big(start, small)
    assert said.startswith("the weights of alpha-1/0 are 3.0 GiB, 2.0 GiB of memory are available")
    assert room.too_big(replace(start, weights=str(file.parent)), small) == said


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({}, Room(memory_bytes=4 * GIB)),
        ({}, Room()),
        ({"gpus": ("GPU-0",)}, Room(memory_bytes=1)),
        ({"resources": Resources(host_memory_bytes=GIB)}, Room(memory_bytes=1)),
        ({"weights": "org/name"}, Room(memory_bytes=1)),
        ({"weights": "/no/such/file"}, Room(memory_bytes=1)),
    ],
)
def test_no_word_where_they_fit_or_nothing_is_known(
    tmp_path: Path, changes: dict[str, object], there: Room
) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    os.truncate(file, 3 * GIB)
    assert room.too_big(replace(START, **{"weights": str(file), **changes}), there) == ""


def test_a_real_agent_refuses_a_start_whose_model_file_is_absent(tmp_path: Path) -> None:
    """Told by weights or by the command; once it is there the same start is made."""
    rig, file = Rig(tmp_path), tmp_path / "m.gguf"
    try:
        rig.start_agent().registered()
        rig.start(1, weights=str(file))
        refusal = rig.control.refusal("no_weights")
        assert refusal["why"].startswith(f"model file {file} does not exist on box1; put it there")
        assert (refusal["shard"], refusal["resource"]) == ("alpha-1/0", "")
        assert not rig.record_path(1).exists()
        engine = tmp_path / "llama-server"
        engine.write_text("#!/bin/sh\nexec sleep 60\n")
        engine.chmod(0o755)
        rig.start(2, command=(str(engine), "--model", str(file)))
        of = {"alpha-1/0", "alpha-2/0"}
        rig.control.wait(lambda: {r["shard"] for r in rig.control.refused} == of, "both refused")
        file.touch()
        rig.start(3, command=(str(engine), "--model", str(file)), weights=str(file))
        rig.control.shard("alpha-3/0", "starting")
    finally:
        rig.close()


def test_a_real_agent_refuses_what_its_host_has_no_memory_for(tmp_path: Path) -> None:
    """And starts the same engine with a figure that fits; weights that are too large are told in its log."""
    rig = Rig(tmp_path)
    try:
        rig.start_agent().registered()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        most = Resources(host_memory_bytes=memory)  # there is never all of it
        rig.start(1, resources=most)
        refusal = rig.control.refusal("insufficient_memory")
        assert refusal["resource"] == "host memory"
        assert "GiB of host memory are available now, alpha-1/0 needs " in refusal["why"]
        rig.ready(2, resources=Resources(host_memory_bytes=1 << 20))
        file = tmp_path / "big.gguf"
        file.touch()
        os.truncate(file, 1 << 42)
        rig.start(3, weights=str(file))
        rig.said("the weights of alpha-3/0 are 4096.0 GiB, ")
    finally:
        rig.close()
