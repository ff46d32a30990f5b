"""Names become paths, environment and keys: what an agent does not take for one, and what no engine can start with."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.supervise.claims import ID, NAME, is_key
from llmgw.core.types.catalog import Ready, Stop
from llmgw.core.types.messages import DrainShard, ForgetShard, Resources, StopShard
from llmgw.core.types.node import DeleteRecord, Refuse, Room, Signal, Spawn
from llmgw.core.weights import absent
from tests.core.agent_bench import BY, GIB, KEY, Bench, on_gpu, start

#: No replica and no incarnation is named like this, and no path is made of it.
ODD = [
    "",
    ".",
    "..",
    "../../etc/cron.d/x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "a b",
    "-rf",
    ".hidden",
    "_x",
    "~root",
    "$HOME",
    "${env.TOKEN}",
    "a@0@b",
    "caf\u00e9",
    "\u0430lpha-1",  # a cyrillic first letter
    "\uff41lpha",  # full width
    "alpha\u200b",  # no width
    "\u0663",  # a digit of another script
    "a" * 101,
    "a" * 5000,
]


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_a_start_with_an_odd_name_is_refused(odd: str) -> None:
    odd_ones: list[dict[str, Any]] = [
        {"replica": odd, "shard": f"{odd}/0"},
        {"incarnation": odd},
        {"model": odd},
        {"profile": odd},
        {"shard": f"alpha-1/{odd}"},
    ]
    for changes in odd_ones:
        b = Bench().start(**changes)
        assert b.refusal()[0] == "bad_name", changes
        assert not b.state.records


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_an_order_about_an_odd_name_changes_nothing_and_names_no_file(odd: str) -> None:
    b = Bench().ready()
    for shard, incarnation in ((f"{odd}/0", "inc-1"), ("beta-1/0", odd), (f"beta-1/{odd}", "i")):
        about: dict[str, Any] = {"shard": shard, "incarnation": incarnation, **BY}
        for command in (
            StopShard(reason="t", **about),
            StopShard(reason="t", force=True, **about),
            DrainShard(reason="t", **about),
            ForgetShard(**about),
        ):
            assert b.command(command).refusal()[0] == "bad_name"
            assert b.kinds() == ["Refuse"]
    assert b.record.state == "ready"


@pytest.mark.parametrize("rank", ["-1", "00", "01", "10000", "9" * 400, "+1", "1.0", "\u0663", ""])
def test_a_rank_is_written_as_a_number_is(rank: str) -> None:
    assert not is_key((f"alpha-1/{rank}", "inc-1"))
    forget = ForgetShard(shard=f"alpha-1/{rank}", incarnation="inc-1", **BY)
    assert Bench().command(forget).refusal()[0] == "bad_name"


@pytest.mark.parametrize("rank", [-1, 10_000, 10**30])
def test_a_rank_that_no_group_has_is_refused(rank: int) -> None:
    assert Bench().start(rank=rank, shard=f"alpha-1/{rank}").refusal()[0] == "bad_name"


def test_names_of_the_longest_kind_are_taken() -> None:
    replica = "a" * 100
    b = Bench().start(
        replica=replica, shard=f"{replica}/0", incarnation="i" * 100, model="m" * 63, profile="9"
    )
    assert b.of(Spawn)
    assert not NAME.fullmatch("m" * 64)
    assert is_key((f"{replica}/9999", "0199.a_b-C"))


@pytest.mark.parametrize("state", ["running", "ended"])
def test_names_that_differ_by_case_only_may_be_one_file(state: str) -> None:
    """On a file system that folds case one record would overwrite the other, and one log hold both engines' words."""
    b = Bench().ready()
    if state == "ended":
        b.stop().gone()
    for shard, incarnation in (("Alpha-1", "inc-2"), ("ALPHA-1", "INC-1"), ("alpha-1", "Inc-1")):
        b.start(replica=shard, shard=f"{shard}/0", incarnation=incarnation, port=18009)
        reason, _, why = b.refusal()
        assert reason == "shard_held"
        assert "alpha-1/0" in why
    assert set(b.state.records) == {KEY}


@given(st.text(max_size=120), st.text(max_size=120))
def test_what_is_taken_for_a_name_is_one_path_element(shard: str, incarnation: str) -> None:
    for name in (shard, incarnation):
        if ID.fullmatch(name):
            assert PurePosixPath(name).parts == (name,)
            assert name.isascii()
            assert not name.startswith((".", "-", "~"))
    if is_key((shard, incarnation)):
        replica, rank = shard.split("/")
        assert shard == f"{replica}/{int(rank)}"


UNSOUND: list[tuple[dict[str, Any], str]] = [
    ({"command": ()}, "without a command"),
    ({"attempt": 0}, "attempt 0"),
    ({"attempt": 100_000}, "attempt 100000"),
    ({"port": 0}, "ports [0]"),
    ({"port": -1}, "ports [-1]"),
    ({"ports": {"group": 70000}}, "ports [18001, 70000]"),
    ({"ports": {"group": 18001}}, "want different ones"),
    ({"gpus": ("GPU-0", "GPU-0")}, "names a GPU twice: GPU-0, GPU-0"),
    ({"resources": Resources(gpu_memory_bytes=-1)}, "less than nothing"),
    ({"resources": Resources(host_memory_bytes=-1)}, "less than nothing"),
    ({"resources": Resources(cpu_cores=-0.5)}, "less than nothing"),
    ({"resources": Resources(power_w=-1.0)}, "less than nothing"),
    ({"ready": Ready(failures=0, of=5)}, "0 of 5 probes"),
    ({"ready": Ready(failures=1, of=0)}, "1 of 0 probes"),
    ({"ready": Ready(failures=6, of=5)}, "6 of 5 probes"),
    ({"stop": Stop(signal="9")}, "'9'"),
    ({"stop": Stop(signal="STOP")}, "'STOP'"),
    ({"health": "health"}, "no path"),
    ({"health": "/a b"}, "no path"),
    ({"health": "/x HTTP/1.1\r\nX: y"}, "no path"),
    ({"command": ("engine", "a\0b")}, "a NUL"),
    ({"weights": "/m\0"}, "a NUL"),
    ({"fingerprint": "\0"}, "a NUL"),
    ({"served_name": "\0"}, "a NUL"),
    ({"env": {"A": "\0"}}, "environment"),
    ({"env": {"A\0": "1"}}, "environment"),
    ({"env": {"A=B": "1"}}, "environment"),
    ({"env": {"": "1"}}, "environment"),
]


@pytest.mark.parametrize(("changes", "words"), UNSOUND, ids=str)
def test_what_no_engine_can_be_started_with_is_refused(changes: Any, words: str) -> None:
    """Taken, it would end the agent at its exec, or give others what this one is to have."""
    reason, resource, why = Bench().start(**changes).refusal()
    assert (reason, resource) == ("bad_command", "")
    assert words in why
    assert why.startswith("alpha-1/0 ")


# ---------------------------------------------------------------- whose name it is


def test_an_order_means_one_incarnation() -> None:
    """F75, A37: the same replica id from another placement is somebody else's; nothing happens to this one."""
    b = Bench().ready()
    about: dict[str, Any] = {"shard": "alpha-1/0", "incarnation": "inc-2", **BY}
    for command in (
        StopShard(reason="t", **about),
        StopShard(reason="t", force=True, **about),
        DrainShard(reason="t", **about),
        ForgetShard(**about),
    ):
        reason, _, why = b.command(command).refusal()
        assert reason == "other_incarnation"
        assert "alpha-1/0 is incarnation inc-1 here, not inc-2" in why
        assert (b.record.state, b.record.desired) == ("ready", "running")
        assert not b.of(Signal)
    assert b.start(incarnation="inc-2", port=18009).refusal()[0] == "shard_held"
    b.stop().gone()
    for command in (StopShard(reason="t", **about), ForgetShard(**about)):
        assert b.command(command).effects == (DeleteRecord(("alpha-1/0", "inc-2")),)
    assert b.record.state == "stopped"
    assert b.start(incarnation="inc-2").of(Spawn)  # its name is free again
    assert len(b.state.records) == 2


# ---------------------------------------------------------------- which resource stands in the way


def test_a_refusal_names_the_resource_that_is_in_the_way() -> None:
    """So that control holds that one and places on the rest of the node; "" holds nothing."""
    b = Bench().ready(
        gpus=("GPU-0",), resources=Resources(host_memory_bytes=60 * GIB, cpu_cores=12.0)
    )
    big = Resources(host_memory_bytes=GIB * 5)
    said = {
        b.command(command, ports_busy={18003: "pid 7"}).refusal()[:2]
        for command in (
            start(2, replica="x"),
            start(2, port=0),
            start(2, launcher="k8s"),
            start(1, incarnation="inc-2"),
            start(1, attempt=2),
            on_gpu(2),
            on_gpu(2, "GPU-9"),
            start(2, port=18001),
            start(3),
            start(2, resources=big),
            start(2, resources=Resources(cpu_cores=4.5)),
            ForgetShard(shard="alpha-1/0", incarnation="inc-1", **BY),
        )
    }
    assert said == {
        ("bad_name", ""),
        ("bad_command", ""),
        ("not_built", ""),
        ("shard_held", ""),
        ("attempt_held", ""),
        ("gpu_held", "gpu GPU-0"),
        ("no_such_gpu", "gpu GPU-9"),
        ("port_held", "port 18001"),
        ("port_in_use", "port 18003"),
        ("host_memory", "host memory"),
        ("cpu_cores", "CPU cores"),
        ("still_running", ""),
    }
    assert not b.of(Refuse)[0].refusal.resource


def test_shares_of_a_core_add_up_in_any_order() -> None:
    """0.1 + 0.2 + 0.7 is a little more than 1 as floats go; control adds them up the other way round."""
    b = Bench()
    for n, cores in enumerate((0.1, 0.2, 7.7, 8.0), 1):
        assert b.start(n, resources=Resources(cpu_cores=cores)).of(Spawn), cores
    assert b.start(9, resources=Resources(cpu_cores=0.1)).refusal()[0] == "cpu_cores"


@pytest.mark.parametrize(
    ("room", "resources", "said"),
    [
        (
            Room(missing="/m/a.gguf"),
            Resources(),
            (
                "no_weights",
                "",
                absent("/m/a.gguf", "box1", "main"),
            ),
        ),
        (
            Room(memory_bytes=4 * GIB),
            Resources(host_memory_bytes=5 * GIB),
            (
                "insufficient_memory",
                "host memory",
                "4.0 GiB of host memory are available now, alpha-1/0 needs 5.0",
            ),
        ),
        (
            Room(disk_bytes=255 << 20, disk_size_bytes=100 * GIB),
            Resources(),
            (
                "disk_low",
                "node",
                "255 MiB are free on the disk of the agent's state dir, alpha-1/0 is started from 256 MiB on",
            ),
        ),
        (
            Room(disk_bytes=9 << 20, disk_size_bytes=100 << 20),
            Resources(),
            (
                "disk_low",
                "node",
                "9 MiB are free on the disk of the agent's state dir, alpha-1/0 is started from 10 MiB on",
            ),
        ),
    ],
)
def test_a_start_for_which_the_host_has_no_room_now(
    room: Room, resources: Resources, said: tuple[str, str, str]
) -> None:
    """Reservations know nothing of strangers' memory, nor of a disk that fills up."""
    assert Bench().command(start(resources=resources), room=room).refusal() == said


@pytest.mark.parametrize(
    ("room", "resources"),
    [
        (Room(), Resources(host_memory_bytes=5 * GIB)),
        (Room(memory_bytes=5 * GIB), Resources(host_memory_bytes=5 * GIB)),
        (Room(memory_bytes=1), Resources()),
        (Room(disk_bytes=256 << 20, disk_size_bytes=100 * GIB), Resources()),
        (Room(disk_bytes=10 << 20, disk_size_bytes=100 << 20), Resources()),
    ],
)
def test_what_is_not_known_or_not_asked_for_limits_nothing(
    room: Room, resources: Resources
) -> None:
    assert Bench().command(start(resources=resources), room=room).of(Spawn)
