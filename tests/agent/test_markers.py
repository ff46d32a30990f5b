"""The order in an engine's environment: what travels in it, what must not, and what is believed of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from llmgw.agent import markers, process
from llmgw.agent.launch import markers as plain_markers
from llmgw.core.types.catalog import Ready, Restart, Stop
from llmgw.core.types.messages import Peer, Resources, Start
from llmgw.core.types.node import NodeFacts, Told
from llmgw.core.types.record import Key, Record
from llmgw.core.types.sleep import Doors
from tests.agent.rig import until

FACTS = NodeFacts(node="box1", node_id="n1")
KEY: Key = ("alpha-1/0", "inc-1")
#: No field is at its default.
START = Start(
    shard="alpha-1/0",
    replica="alpha-1",
    incarnation="inc-1",
    model="alpha",
    profile="main",
    attempt=2,
    rank=0,
    world_size=2,
    served_name="served",
    fingerprint="1:f",
    weights="${env.MODELS}/a.gguf",
    launcher="docker",
    image="img",
    mounts=("/srv/hub:/root/.cache:ro",),
    engine="mine",
    command=("engine", "--port", "${port}", "caf\u00e9"),
    env={"TOKEN": "${env.HF}", "LLAMA_API_KEY": "${api_key}"},
    pool="fast",
    start_order="workers_first",
    fabric="ib0",
    gpus=("GPU-b", "GPU-a"),
    hcas=("mlx5_0",),
    port=18000,
    ports={"group": 18500},
    resources=Resources(gpu_memory_bytes=7, host_memory_bytes=8, cpu_cores=1.5, power_w=9.0),
    health="/up",
    compute="llama.cpp",
    ready=Ready(token=True, failures=2, of=4),
    start_timeout_s=60.0,
    stop=Stop(signal="INT", grace_s=3.0),
    restart=Restart(max=2, window_s=9.0, backoff_s=1.0),
    peers=(Peer(rank=1, node="box2", address="10.0.0.2", port=50052),),
    api_key="key-of-the-order",
    insecure=True,
    sleep=Doors(
        level=1, asleep="/is_sleeping", sleep=("/sleep?level=1",), wake=("/wake_up",), canary=True
    ),
    seq=7,
    session="s1",
    epoch=3,
    leader_uuid="L1",
    after=(("beta-1/0", "inc-0"),),
)
RECORD = Record(start=START, attempt=5, api_key="key-of-the-engine", started_at="T0")
#: What the marker leaves out, as a new order has it.
BLANK: dict[str, Any] = {
    "api_key": "",
    "seq": 0,
    "session": "",
    "epoch": 0,
    "leader_uuid": "",
    "attempt": 1,
    "after": (),
}


def env_of(record: Record, artefact: str = "art") -> dict[str, str]:
    return {**plain_markers(record, FACTS), **markers.written(record, artefact)}


def test_every_field_of_the_order_travels_but_what_is_secret_or_of_one_session() -> None:
    """A20, A21: world size, resources, GPUs, pool, fabric, policy."""
    defaults = msgspec.to_builtins(
        Start(shard="", replica="", incarnation="", model="", profile="")
    )
    at_default = {k for k, v in msgspec.to_builtins(START).items() if v == defaults[k]}
    assert at_default <= {"rank", "kind"}, "give the new field a value here"
    start, told = markers.read(KEY, {**env_of(RECORD), "LLAMA_API_KEY": "k"}, [])
    assert start == replace(START, **BLANK)
    assert told == Told(attempt=5, started_at="T0", artefact="art", api_key="k", whole=True)


def test_no_secret_is_written_into_it() -> None:
    """Placeholders stay as they are; every process of the engine has a copy."""
    text = markers.written(RECORD, "${env.MODELS}/a.gguf")["LLMGW_START"]
    assert "${env.HF}" in text
    for secret in ("key-of-the-order", "key-of-the-engine", "L1", "s1"):
        assert secret not in text
    assert text.isascii()


def test_it_is_short_for_a_simple_order() -> None:
    few = Start(shard="alpha-1/0", replica="alpha-1", incarnation="i", model="alpha", profile="m")
    assert len(markers.written(Record(start=few), "")["LLMGW_START"]) < 200


def test_an_order_that_is_too_long_goes_without_its_command() -> None:
    """Whole all the same: what it holds is known, only how to start it again is not."""
    for long in (
        {"command": ("engine", "--template", "x" * markers.MAX_BYTES)},
        {"env": {"TEMPLATE": "\u00e9" * (markers.MAX_BYTES // 6)}},
    ):
        record = replace(RECORD, start=replace(START, **long))
        env = env_of(record)
        assert len(env["LLMGW_START"]) <= markers.MAX_BYTES
        start, told = markers.read(KEY, env, [])
        assert start == replace(START, **BLANK, command=(), env={}, peers=(), image="", mounts=())
        assert told.whole


def test_what_does_not_fit_at_all_leaves_the_plain_markers() -> None:
    record = replace(RECORD, start=replace(START, weights="w" * markers.MAX_BYTES))
    env = env_of(record)
    assert "LLMGW_START" not in env
    start, told = markers.read(KEY, env, [])
    assert (start.model, start.port, told.attempt, told.whole) == ("alpha", 18000, 5, False)


def test_an_older_agents_markers_tell_less() -> None:
    """As before: no world size, no resources, not started again."""
    env = plain_markers(RECORD, FACTS) | {"VLLM_API_KEY": "k"}
    start, told = markers.read(KEY, env, [])
    assert start == Start(
        shard="alpha-1/0",
        replica="alpha-1",
        incarnation="inc-1",
        model="alpha",
        profile="main",
        fingerprint="1:f",
        gpus=("GPU-b", "GPU-a"),
        port=18000,
    )
    assert told == Told(attempt=5, api_key="k")


def changed(**fields: Any) -> str:
    whole = json.loads(markers.written(RECORD, "")["LLMGW_START"])
    whole["start"] |= fields
    return json.dumps(whole)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "[" * 5000,
        '{"format": 1}',
        '{"format": 2, "start": {}}',
        changed(shard="alpha-2/0", replica="alpha-2"),
        changed(incarnation="inc-2"),
        changed(replica="../../x"),
        changed(model="a/b"),
        changed(profile=""),
        changed(port="18000"),
        changed(rank=1),
    ],
    ids=range(14),
)
def test_what_does_not_name_this_shard_is_not_believed(text: str) -> None:
    """Anybody's environment may hold anything; the plain markers count then."""
    start, told = markers.read(KEY, {**plain_markers(RECORD, FACTS), "LLMGW_START": text}, [])
    assert (start.shard, start.model, start.port, told.whole) == (KEY[0], "alpha", 18000, False)


def test_plain_markers_that_make_no_sense_tell_nothing() -> None:
    env = {
        "LLMGW_MODEL": "../x",
        "LLMGW_PROFILE": "\udcff",
        "LLMGW_FINGERPRINT": "\udcff",
        "LLMGW_PORT": "\u0663",
        "LLMGW_ATTEMPT": "9" * 5000,
        "CUDA_VISIBLE_DEVICES": ",",
        "LLAMA_API_KEY": "\udcff",
    }
    start, told = markers.read(KEY, env, [])
    assert (start.model, start.profile, start.fingerprint, start.port) == ("", "", "", 0)
    assert (start.gpus, told) == ((), Told())


def test_fields_of_a_newer_agent_are_passed_over() -> None:
    """F56."""
    whole = json.loads(changed(mood="good")) | {"more": 1}
    start, _ = markers.read(KEY, {"LLMGW_START": json.dumps(whole)}, [])
    assert start == replace(START, **BLANK)


@pytest.mark.parametrize(
    ("env", "command", "argv", "key"),
    [
        ({"K": "${api_key}"}, ("e",), ["e"], "k1"),
        ({"K": "Bearer ${api_key};"}, ("e",), ["e"], "k1"),
        ({"A": "plain"}, ("e", "--key=${api_key}"), ["e", "--key=k1"], "k1"),
        ({}, ("e", "--key", "${api_key}", "-v"), ["/bin/sh", "/e", "--key", "k1", "-v"], "k1"),
        ({}, ("e", "--key", "${api_key}", "-v"), ["retitled"], ""),
        ({}, ("e", "${port}:${api_key}"), ["e", "18000:k1"], ""),
        ({"K": "x${api_key}"}, ("e",), ["e"], ""),
    ],
)
def test_its_key_is_found_where_the_order_put_it(
    env: dict[str, str], command: tuple[str, ...], argv: list[str], key: str
) -> None:
    said = {"K": "Bearer k1;" if "Bearer" in env.get("K", "") else "k1", "A": "plain"}
    record = replace(RECORD, start=replace(START, env=env, command=command))
    assert markers.read(KEY, env_of(record) | said, argv)[1].api_key == key


def test_a_real_environment_holds_it() -> None:
    """Through exec, byte for byte, and beside what the locale cannot say."""
    env = {**env_of(RECORD), "LATIN": os.fsdecode(b"\xff"), "LLAMA_API_KEY": "k"}
    child = subprocess.Popen(
        [sys.executable, "-c", "input()", "--last"], stdin=subprocess.PIPE, env=env
    )
    until(lambda: process.words(child.pid)[-1:] == ["--last"], "exec")
    seen = process.environ(child.pid)
    assert process.marked_as(seen, "n1") == KEY
    assert markers.read(KEY, seen, process.words(child.pid)).start == replace(START, **BLANK)
    child.communicate(b"\n")
    assert process.words(child.pid) == []
