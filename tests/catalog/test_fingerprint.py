"""A fingerprint changes with the process and with nothing else, and today's stay what they are for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw.core.types.catalog import Profile

Load = Callable[..., Profile]

BASE = "command: [/bin/engine, --port, '${port}']\nargs: [-c, 32768]\nenv: {A: 1, B: 2}\nweights: /m\ngpus: 1"


def fp(load: Load, lines: str, rest: str = "") -> str:
    return load(lines, rest=rest).fingerprint_on("default")


@pytest.mark.parametrize(
    ("lines", "rest", "golden"),
    [
        ("command: [/bin/engine, --port, '${port}']", "", "1:6ed8ad46a0a56236135edc8d09d5e760"),
        (BASE, "", "1:c279b0eb4647103f9f88d4bce902586d"),
        (
            "engine: llama.cpp\nweights: /models/a.gguf\nargs: [-c, 4096]",
            "",
            "1:22ff09f7cd828abd4eb6abcb58c84515",
        ),
        (
            "engine: vllm\nweights: /m\nnodes: 2\ngpus: 2\nworker_args: [--headless]\nleader_args: [-v]",
            "",
            "1:1fab5075443dcf447a447f731399798b",
        ),
        (
            "engine: rpc\nweights: /m\nnodes: 2\nworker_command: [w]",
            "",
            "1:c4457d006282eeadf7538c3299b26f38",
        ),
        (
            "engine: mine\nweights: /m",
            "engines: {mine: {command: [é, '\"'], env: {K: '${api_key}'}}}\n",
            "1:ce2421e78f9780d57ade79c804efa7f4",
        ),
        (
            "engine: ollama\nenv: {X: y}",
            "engines: {ollama: {command: [o]}}\n",
            "1:0c4bae5beb2a678062cbd171f53536a1",
        ),
    ],
)
def test_golden(lines: str, rest: str, golden: str, profile: Load) -> None:
    """Never edit these: an engine started by an older llmgw would be rolled for nothing."""
    assert fp(profile, lines, rest) == golden


@pytest.mark.parametrize(
    "change",
    [
        BASE.replace("32768", "65536"),
        BASE.replace("/bin/engine", "/opt/engine"),
        BASE.replace("B: 2", "B: 3"),
        BASE.replace("gpus: 1", "gpus: 2"),
        BASE.replace("/m", "/n"),
        BASE + "\nnodes: 2",
        BASE + "\nnodes: 2\nworker_args: [x]",
        BASE + "\nnodes: 2\nleader_args: [x]",
        BASE + "\nnodes: 2\nworker_command: [x]",
    ],
)
def test_it_changes_with_the_process(change: str, profile: Load) -> None:
    assert fp(profile, change) != fp(profile, BASE)


def test_a_mount_is_part_of_a_container(profile: Load) -> None:
    box = "launcher: podman\nimage: a\ncommand: [x]"
    plain = fp(profile, box)
    assert fp(profile, f"{box}\nmounts: []") == plain
    one = fp(profile, f"{box}\nmounts: ['/a:/b']")
    assert len({plain, one, fp(profile, f"{box}\nmounts: ['/a:/b:ro']")}) == 3


@pytest.mark.parametrize(
    "more",
    [
        "weight: 7",
        "gpu_memory: 10GiB",
        "host_memory: 1GiB",
        "cpu_cores: 3",
        "power_w: 100",
        "pool: other",
        "select: {a: b}",
        "fabric: any",
        "health: /other",
        "ready: {token: true}",
        "compute: llama.cpp",
        "upstream_key: true",
        "insecure: true",
        "start_timeout: 1m",
        "drain_timeout: 1m",
        "stop: {signal: INT}",
        "restart: {max: 1}",
        "nodes: 1",
        "launcher: exec",
    ],
)
def test_it_does_not_change_with_what_leaves_the_process_alone(more: str, profile: Load) -> None:
    assert fp(profile, f"{BASE}\n{more}") == fp(profile, BASE)


def test_an_argument_may_move_into_the_command_and_the_command_into_an_engine(
    profile: Load,
) -> None:
    rest = "engines: {mine: {command: [/bin/engine, --port, '${port}', -c], env: {B: 2}}}\n"
    moved = "engine: mine\nargs: [32768]\nenv: {A: 1}\nweights: /m\ngpus: 1"
    assert fp(profile, moved, rest) == fp(profile, BASE)


def test_a_built_in_engine_counts_by_its_name(profile: Load) -> None:
    """So a newer template rolls nobody; what the user wrote besides still counts."""
    mine = "engine: llama.cpp\nweights: /m"
    same = "engines: {llama.cpp: {command: [llama-server, --model, '${weights}']}}\n"
    assert fp(profile, mine) != fp(profile, mine, same)
    assert fp(profile, mine) != fp(profile, "engine: vllm\nweights: /m")
    assert fp(profile, mine) != fp(profile, mine + "\nargs: [-x]")
    assert fp(profile, mine) != fp(profile, mine + "\nenv: {X: 1}")
    assert fp(profile, mine) == fp(profile, mine, "engines: {llama.cpp: {health: /healthz}}\n")


def test_one_for_each_entry_of_weights(profile: Load) -> None:
    lines = "command: [x]\nweights: {default: /a, box2: /b}"
    got = profile(lines)
    assert set(got.fingerprints) == {"default", "box2"}
    assert got.fingerprint_on("box1") == fp(profile, "command: [x]\nweights: /a")
    assert got.fingerprint_on("box2") == fp(profile, "command: [x]\nweights: /b")
    # A node that the weights do not name has none: neither equal to the others nor unknown.
    only = profile("command: [x]\nweights: {box2: /b}")
    assert only.fingerprint_on("box1") == fp(profile, "command: [x]")
