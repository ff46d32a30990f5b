"""The words that make a container, without one: devices, mounts, environment, entrypoint, labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from llmgw.agent import container_start
from llmgw.agent.container_start import mounts, name_of, order
from llmgw.agent.launch import Filled, LaunchError, filled
from llmgw.agent.placeholders import Filler
from llmgw.agent.runtime import Image
from llmgw.core.mount import Mount
from llmgw.core.types.messages import Gpu, Start
from llmgw.core.types.node import NodeFacts
from llmgw.core.types.record import Record

FACTS = NodeFacts(node="box1", node_id="node-1")
START = Start(
    shard="alpha-1/0",
    replica="alpha-1",
    incarnation="inc-1",
    model="alpha",
    profile="main",
    launcher="podman",
    image="ghcr.io/a/b:1",
    command=("--port", "1"),
)
GPUS = (Gpu(uuid="GPU-a", index=0), Gpu(uuid="GPU-b", index=3))


def args(
    env: dict[str, str] | None = None,
    entrypoint: tuple[str, ...] = (),
    weights: str = "",
    secrets: frozenset[str] = frozenset(),
    binds: tuple[Mount, ...] = (),
    **changes: Any,
) -> tuple[str, ...]:
    start = replace(START, **changes)
    filled = Filled(start.command, env or {}, weights, "", secrets, binds)
    return order(Record(start=start, attempt=2), FACTS, filled, Image(entrypoint), GPUS).args


def test_its_name_and_labels_are_of_one_attempt() -> None:
    """F43: the runtime itself refuses a second container of a name."""
    assert name_of(Record(start=START, attempt=2)) == "llmgw-alpha-1-0-inc-1-2"
    said = args()
    assert "--name=llmgw-alpha-1-0-inc-1-2" in said
    assert {a for a in said if a.startswith("--label=")} == {
        "--label=llmgw.node=node-1",
        "--label=llmgw.shard=alpha-1/0",
        "--label=llmgw.incarnation=inc-1",
        "--label=llmgw.attempt=2",
    }
    assert said[-3:] == ("ghcr.io/a/b:1", "--port", "1")
    assert not any(a.startswith(("--rm", "--restart")) for a in said)


def test_podmans_gpus_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By UUID; by index where the node's own list has no UUIDs, as older toolkits write it."""
    spec = tmp_path / "nvidia.yaml"
    monkeypatch.setattr(container_start, "CDI_FILES", (spec,))
    both = ("GPU-a", "GPU-b")
    by_uuid = ["--device=nvidia.com/gpu=GPU-a", "--device=nvidia.com/gpu=GPU-b"]
    assert [a for a in args(gpus=both) if "device" in a] == by_uuid
    spec.write_text('devices:\n- name: "0"\n- name: "3"\n')
    by_index = ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=3"]
    assert [a for a in args(gpus=both) if "device" in a] == by_index
    spec.write_text("devices:\n- name: GPU-a\n- name: GPU-b\n")
    assert [a for a in args(gpus=both) if "device" in a] == by_uuid


def test_dockers_gpus_are_one_quoted_value() -> None:
    said = args(gpus=("GPU-a", "MIG-b"), launcher="docker")
    assert said[said.index("--gpus") + 1] == '"device=GPU-a,MIG-b"'
    assert "--log-driver=json-file" in said


def test_without_gpus_an_image_gets_none() -> None:
    """Where the NVIDIA runtime is the default one, an image may ask for all of them by itself."""
    assert "--env=NVIDIA_VISIBLE_DEVICES" in args()
    assert "--env=NVIDIA_VISIBLE_DEVICES" not in args(gpus=("GPU-a",))
    assert not any("--gpus" in a or "--device" in a for a in args())


def test_an_engines_template_is_a_whole_command_line() -> None:
    """Without one the command is appended to the image's entrypoint (contract/catalog.md)."""
    whole: dict[str, Any] = {"engine": "llama.cpp", "command": ("llama-server", "-m", "x")}
    assert args(**whole)[-4:] == ("--entrypoint=llama-server", "ghcr.io/a/b:1", "-m", "x")
    knows = args(entrypoint=("/app/llama-server",), **whole)
    assert knows[-4:] == ("--entrypoint=/app/llama-server", "ghcr.io/a/b:1", "-m", "x")
    other = args(entrypoint=("/entry.sh",), **whole)
    assert "--entrypoint=llama-server" in other
    assert not any(a.startswith("--entrypoint") for a in args(entrypoint=("/app/x",)))
    assert args(command=())[-1] == "ghcr.io/a/b:1"


def test_the_environment_goes_by_the_programs_own() -> None:
    """So that no value is an argument; what the program would take for its own has to be one, so no secret may."""
    start = replace(START, command=())
    env = {"A": "1", "LD_LIBRARY_PATH": "/x", "HF_HOME": "/hf"}
    made = order(Record(start=start), FACTS, Filled((), env, "", "", frozenset()), Image(()), ())
    assert {"--env=A", "--env=HF_HOME", "--env=LD_LIBRARY_PATH=/x"} <= set(made.args)
    assert made.env == {"A": "1", "HF_HOME": "/hf", "NVIDIA_VISIBLE_DEVICES": "void"}
    with pytest.raises(
        LaunchError, match=r"env\.PATH holds a secret, and podman can be given PATH"
    ):
        args(env={"PATH": "/a/the-secret/b"}, secrets=frozenset({"the-secret"}))


def test_weights_are_mounted_where_they_are(tmp_path: Path) -> None:
    """Read-only, at the same path, with the other parts of a split file and what a folder's links lead to."""
    hub = tmp_path / "hub"
    snapshot, blobs = hub / "snapshots/1", hub / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    (blobs / "abc").touch()
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    (snapshot / "inner").symlink_to("config.json")
    assert mounts(str(snapshot)) == (str(blobs), str(snapshot))
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for path in (*parts, tmp_path / "m-00001-of-00003.gguf", tmp_path / "one.gguf"):
        path.touch()
    assert mounts(str(parts[0])) == tuple(map(str, parts))
    assert mounts(str(tmp_path / "one.gguf")) == (str(tmp_path / "one.gguf"),)
    assert mounts("org/name") == mounts("/nowhere/x.gguf") == mounts("") == ()
    one = str(tmp_path / "one.gguf")
    assert f"--mount=type=bind,source={one},target={one},readonly" in args(weights=one)


def test_a_profiles_mounts_come_with_it_and_before_the_weights_own(tmp_path: Path) -> None:
    path = tmp_path / 'a, "b".gguf'
    path.touch()
    quoted = str(path).replace('"', '""')
    rw = Mount("/srv/hub", "/root/.cache")
    said = [a for a in args(weights=str(path), binds=(rw,)) if a.startswith("--mount=")]
    assert said == [
        "--mount=type=bind,source=/srv/hub,target=/root/.cache",
        f'--mount=type=bind,"source={quoted}","target={quoted}",readonly',
    ]
    own = Mount("/elsewhere", str(path), read_only=True)
    said = [a for a in args(weights=str(path), binds=(own,)) if a.startswith("--mount=")]
    assert len(said) == 1
    assert "source=/elsewhere" in said[0]


def filled_in(mount: str, **environ: str) -> tuple[Mount, ...]:
    start = replace(START, mounts=(mount,))
    fill = Filler({"state_dir": "/srv/state"}, environ)
    return filled(Record(start=start), FACTS, fill).mounts


def test_a_mount_is_filled_in_on_its_node(tmp_path: Path) -> None:
    for name in ("a", "a:b"):
        (tmp_path / name).mkdir()
    found = filled_in("${env.HOME}/a:/root", HOME=str(tmp_path))
    assert found == (Mount(f"{tmp_path}/a", "/root"),)
    assert filled_in("${env.X}:/b:ro", X=f"{tmp_path}/a:b") == (
        Mount(f"{tmp_path}/a:b", "/b", read_only=True),
    )
    with pytest.raises(LaunchError, match="its source is not there on box1"):
        filled_in("/nowhere:/b")
    with pytest.raises(LaunchError, match="relative is not an absolute path"):
        filled_in("${env.X}:/b", X="relative")
    with pytest.raises(LaunchError, match=r"goes up by \.\."):
        filled_in("/:/b/${env.X}", X="../c")
