"""What an engine is started with, on this node."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from llmgw.agent import weights
from llmgw.agent.launch import LaunchError, inherited, markers, prepare
from llmgw.agent.logs import Logs
from llmgw.agent.markers import written
from llmgw.agent.placeholders import Filler, PlaceholderError, redacted, values_of
from llmgw.core.types.catalog import PLACEHOLDERS
from llmgw.core.types.messages import Fabric, Gpu, Peer, Start
from llmgw.core.types.node import NodeFacts
from llmgw.core.types.record import Record

START = Start(
    shard="alpha-1/0",
    replica="alpha-1",
    incarnation="i1",
    model="alpha",
    profile="main",
    fingerprint="1:f",
    command=("sh", "--port", "${port}"),
    port=18000,
    ports={"group": 18500},
    fabric="ib0",
    hcas=("mlx5_0",),
    gpus=("GPU-b", "GPU-a"),
    world_size=2,
    peers=(
        Peer(rank=1, node="box2", address="10.0.0.2", port=50052),
        Peer(rank=0, node="box1", address="10.0.0.1", port=18000),
    ),
)
FACTS = NodeFacts(
    node="box1",
    node_id="n1",
    address="10.0.0.1",
    fabrics={"ib0": Fabric(address="10.1.0.1")},
    controls=("10.0.0.5:8801",),
)
GPUS = (Gpu(uuid="GPU-a", index=0), Gpu(uuid="GPU-b", index=1))


def record(**changes: object) -> Record:
    start = replace(START, **{"insecure": True, **changes})
    return Record(start=start, attempt=2, api_key="key-1")


def filler(of: Record) -> Filler:
    values = values_of(of, FACTS, GPUS, Path("/state"), Path("/state/logs/alpha-1/0.log"))
    return Filler(values, {"HF_TOKEN": "hf_abc"})


def test_every_placeholder_of_the_contract_has_a_value() -> None:
    assert set(filler(record()).values) == PLACEHOLDERS - {"weights"}


def test_placeholders() -> None:
    fill = filler(record(served_name="alpha-served"))
    for text, said in (
        ("${host}:${port}", "10.0.0.1:18000"),
        ("${model} ${gpu_indices} ${gpu_uuids} ${gpu_count}", "alpha-served 1,0 GPU-b,GPU-a 2"),
        ("${rank}/${nodes} ${is_leader} ${leader_addr} ${group_port}", "0/2 true 10.0.0.1 18500"),
        ("${workers} ${fabric_addr} ${hcas}", "10.0.0.2:50052 10.1.0.1 mlx5_0"),
        ('{"json": {"stays": 1}}', '{"json": {"stays": 1}}'),
        ("$$HOME $HOME $${port}", "$HOME $HOME ${port}"),
        ("${api_key} ${container_name}", "key-1 llmgw-alpha-1-0"),
    ):
        assert fill(text) == said
    assert not fill.secrets
    with pytest.raises(PlaceholderError, match="unknown placeholder"):
        fill("${nothing}")


def test_secrets_are_filled_in_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from_a_file\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    fill = filler(record())
    text = f"${{env.HF_TOKEN}} ${{file.{tmp_path}/key}} ${{port}}"
    assert fill(text) == "hf_abc from_a_file 18000"
    assert fill.shown(text) == f"${{env.HF_TOKEN}} ${{file.{tmp_path}/key}} 18000"
    assert redacted("hf_abc, then from_a_file", frozenset(fill.secrets)) == "***, then ***"
    assert redacted("a b c", frozenset({"a"})) == "a b c"
    with pytest.raises(PlaceholderError, match="not text"):
        fill(f"${{file.{tmp_path}/bytes}}")


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "INVOCATION_ID", "LLMGW_TOKEN"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/cuda")
    env = {"CUDA_VISIBLE_DEVICES": "0", "SPT_NOENV": "", "MINE": "${weights}", "LLMGW_SHARD": "b"}
    of = record(env=env, weights="org/${model}")
    prepared = prepare(of, FACTS, filler(of))
    assert prepared.argv == ("sh", "--port", "18000")
    assert prepared.executable.endswith("/sh")
    assert prepared.artefact == "org/alpha"
    got = prepared.env
    assert (got["MINE"], got["LD_LIBRARY_PATH"]) == ("org/alpha", "/opt/cuda")
    assert got["CUDA_VISIBLE_DEVICES"] == got["HIP_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert (got["CUDA_DEVICE_ORDER"], got["SPT_NOENV"]) == ("PCI_BUS_ID", "1")
    assert {k: v for k, v in got.items() if k.startswith("LLMGW_")} == {
        "LLMGW_NODE_ID": "n1",
        "LLMGW_NODE": "box1",
        "LLMGW_CONTROLS": "10.0.0.5:8801",
        "LLMGW_REPLICA": "alpha-1",
        "LLMGW_SHARD": "alpha-1/0",
        "LLMGW_INCARNATION": "i1",
        "LLMGW_ATTEMPT": "2",
        "LLMGW_MODEL": "alpha",
        "LLMGW_PROFILE": "main",
        "LLMGW_FINGERPRINT": "1:f",
        "LLMGW_GPUS": "GPU-b,GPU-a",
        "LLMGW_PORT": "18000",
        **written(of, "org/alpha"),
    }
    assert "org/${model}" in got["LLMGW_START"]
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "INVOCATION_ID"} & got.keys()
    assert markers(record(gpus=()), FACTS)["CUDA_VISIBLE_DEVICES"] == ""
    assert inherited({"A": "1", "LLMGW_X": "2"}) == {"A": "1"}


def test_the_artefact_of_a_secret_path_is_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text("")
    of = record(weights="${env.MODELS}/m.gguf")
    fill = Filler(filler(of).values, {"MODELS": str(tmp_path)})
    assert prepare(of, FACTS, fill).artefact == "${env.MODELS}/m.gguf"
    missing = record(weights="${env.MODELS}/n.gguf")
    with pytest.raises(
        LaunchError, match=r"model file \$\{env.MODELS\}/n.gguf does not exist on box1;"
    ):
        prepare(missing, FACTS, fill)


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"weights": "/no/m.gguf", "command": ("sh", "${weights}")}, "/no/m.gguf"),
        ({"weights": "~/m.gguf"}, "~/m.gguf"),
        ({"command": ("x/llama-server", "-m", "/no/m.gguf")}, "/no/m.gguf"),
        ({"command": ("llama-server", "-m", "${weights}.gguf"), "weights": "/"}, "/.gguf"),
        ({"command": ("llama-server", "-m", "/etc/passwd/m.gguf")}, "/etc/passwd/m.gguf"),
        ({"command": ("llama-server", "-m", "${env.MODELS}/m.gguf")}, "${env.MODELS}/m.gguf"),
        ({"command": ("llama-server", "-m", "${env.NOT_SET}/m.gguf")}, ""),
        ({"command": ("llama-server", "-m", "/etc/passwd")}, ""),
        ({"command": ("llama-server", "-m", "m.gguf")}, ""),
        ({"command": ("vllm", "serve", "org/name"), "weights": "org/name"}, ""),
        ({"command": ("sh", "-m", "/no/m.gguf")}, ""),
        ({"command": ("llama-server", "-m", "/no/m.gguf"), "image": "i", "launcher": "podman"}, ""),
    ],
)
def test_which_file_is_not_there(changes: dict[str, Any], lacks: str) -> None:
    """In a container a path of the command is the image's own."""
    of = record(**{"weights": "", **changes})
    fill = Filler(filler(of).values, {"MODELS": "/no"})
    assert weights.missing(of.start, fill) == lacks


def test_a_file_that_may_not_be_looked_at_may_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    of = record(weights="/m/a.gguf")
    monkeypatch.setattr(Path, "stat", denied)
    assert weights.missing(of.start, filler(of)) == ""


def test_beyond_loopback_an_engine_wants_a_key() -> None:
    of = record(insecure=False)
    with pytest.raises(LaunchError, match=r"would answer on 10\.0\.0\.1 without a key"):
        prepare(of, FACTS, filler(of))
    prepare(of, replace(FACTS, address="localhost"), filler(of))
    keyed = record(insecure=False, env={"K": "${api_key}"})
    assert prepare(keyed, replace(FACTS, address="box1.lan"), filler(keyed)).env["K"] == "key-1"


def test_logs(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    for said in (b"first\n", b"\x1b[31msecond\x1b[0m\n\n", b""):
        fd = logs.open_for_attempt("alpha-1/0")
        os.write(fd, said)
        os.close(fd)
        if said:
            assert logs.tail("alpha-1/0", 100).encode() == said
    assert logs.last_line("alpha-1/0") == ""
    assert logs.tail("alpha-1/0", 100, previous=True) == "\x1b[31msecond\x1b[0m\n\n"
    fd = logs.open_for_attempt("alpha-1/0")
    os.write(fd, b"x" * 90 + b"\n\x1b[1mlast words\x1b[0m\n")
    os.close(fd)
    assert logs.last_line("alpha-1/0") == "last words"
    assert logs.tail("alpha-1/0", 25) == "\x1b[1mlast words\x1b[0m\n"
    assert logs.head("alpha-1/0", 3) == "xxx"
    assert logs.since("alpha-1/0", 91) == b"\x1b[1mlast words\x1b[0m\n"
    assert logs.tail("none/0", 5) == logs.head("none/0", 5) == ""
    for bad in ("../../etc/passwd", "/etc/passwd"):
        with pytest.raises(ValueError, match="no shard's name"):
            logs.path(bad)


def test_logs_are_bounded_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of a bounded length, and the attempt before in a third: a flood does not wash it away."""
    monkeypatch.setattr("llmgw.agent.logs.LOG_MAX_BYTES", 10)
    monkeypatch.setattr("llmgw.agent.logs.KEPT_REPLICAS", 1)
    logs = Logs(tmp_path)
    records = {record().key: record()}
    fd = logs.open_for_attempt("alpha-1/0")
    os.write(fd, b"attempt 1")
    os.close(fd)
    fd = logs.open_for_attempt("alpha-1/0")
    assert not logs.bound(records)
    for part in (b"01", b"23", b"45", b"67", b"89"):
        os.write(fd, part)
        assert not logs.bound(records)
    os.write(fd, b"ab")
    assert logs.bound(records)
    assert logs.tail("alpha-1/0", 99) == "23456789ab"  # the end, however long
    os.write(fd, b"more\n")
    assert logs.bound(records)  # half of what it may have, since the last look: a flood, perhaps
    assert not logs.bound(records)
    os.close(fd)
    assert logs.path("alpha-1/0").read_text() == "more\n"
    assert logs.tail("alpha-1/0", 99) == "23456789abmore\n"
    assert logs.tail("alpha-1/0", 99, previous=True) == "attempt 1"
    fd = logs.open_for_attempt("alpha-1/0")
    assert logs.tail("alpha-1/0", 99, previous=True) == "23456789abmore\n"
    assert logs.tail("alpha-1/0", 99) == ""
    os.write(fd, b"0123456789abcd")  # and it dies before anybody looks
    os.close(fd)
    os.close(logs.open_for_attempt("alpha-1/0"))
    assert logs.tail("alpha-1/0", 99, previous=True) == "456789abcd"
    assert len(list((logs.folder / "alpha-1").iterdir())) == 2
    for n, name in enumerate(("old-1", "old-2")):
        os.close(logs.open_for_attempt(f"{name}/0"))
        os.utime(logs.folder / name, (n, n))
    logs.prune(records)
    assert sorted(p.name for p in logs.folder.iterdir()) == ["alpha-1", "old-2"]


def test_of_a_flood_less_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is copied the engine writes on."""
    monkeypatch.setattr("llmgw.agent.logs.LOG_MAX_BYTES", 80)
    logs, records = Logs(tmp_path), {record().key: record()}
    fd = logs.open_for_attempt("alpha-1/0")
    assert not logs.bound(records)
    os.write(fd, b"x" * 100 + b"the end\n")
    assert logs.bound(records)
    os.close(fd)
    assert logs.tail("alpha-1/0", 99) == "xxthe end\n"


def test_the_last_words_of_a_flood_are_kept_though_they_come_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of 1 GB that ended in the middle of a copy had no last line."""
    monkeypatch.setattr("llmgw.agent.logs.LOG_MAX_BYTES", 80)
    logs, records = Logs(tmp_path), {record().key: record()}
    fd = logs.open_for_attempt("alpha-1/0")
    assert not logs.bound(records)
    os.write(fd, b"x" * 100)
    opened = Path.open

    def opens(path: Path, mode: str = "r", **k: Any) -> Any:
        file = opened(path, mode, **k)
        if path.suffix == ".cut" and mode == "wb":
            kept = mock.Mock(wraps=file)
            kept.flush.side_effect = lambda: os.write(fd, b"the end\n")
            return contextlib.closing(kept)
        return file

    monkeypatch.setattr(Path, "open", opens)
    assert logs.bound(records)
    monkeypatch.undo()
    os.close(fd)
    assert logs.tail("alpha-1/0", 99) == "x" * 10 + "the end\n"


def test_all_logs_of_a_node_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many engines get less each, and logs of what is gone go before the bound is passed."""
    block = 4096
    monkeypatch.setattr("llmgw.agent.logs.LOGS_MAX_BYTES", 16 * block)
    logs = Logs(tmp_path)
    for n, name in enumerate(("old-1", "old-2", "old-3")):
        fd = logs.open_for_attempt(f"{name}/0")
        os.write(fd, b"x" * 6 * block)
        os.close(fd)
        os.utime(logs.folder / name, (n, n))
    names = [f"alpha-{n}/0" for n in (1, 2)]
    records = {(name, "inc-1"): record() for name in names}
    monkeypatch.setattr("llmgw.agent.logs.FLOOD_PARTS", 1)
    for name in names:
        fd = logs.open_for_attempt(name)
        os.write(fd, b"y" * 3 * block)
        os.close(fd)
    assert logs.bound(records)
    assert [len(logs.tail(name, 9 * block)) for name in names] == [2 * block, 2 * block]
    assert sorted(p.name for p in logs.folder.iterdir()) == ["alpha-1", "alpha-2", "old-3"]
    assert not logs.bound(records)
