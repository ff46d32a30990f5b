"""Keys that do not go together, names that collide."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Refused = Callable[[str], tuple[str, ...]]
InProfile = Callable[[str], str]
P = "models.q.profiles[main]"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            "gpus: 1",
            f"5:9: {P}: neither engine nor command - name an engine (llama.cpp, vllm, …) or give a command",
        ),
        ("command: []", f"6:9: {P}: an empty command - write [program, --flag, value]"),
        ("command:", f"6:9: {P}: an empty command - write [program, --flag, value]"),
        ("engine: llama.cp", f'6:9: {P}.engine: no engine "llama.cp" - did you mean "llama.cpp"?'),
        (
            "engine: zzz",
            f'6:9: {P}.engine: no engine "zzz" - known: llama.cpp, ollama, rpc, sglang, tabbyapi, vllm',
        ),
        (
            "engine: llama.cpp",
            f"6:9: {P}: the command uses ${{weights}} and there are none - add weights: /path/to/the/model",
        ),
        (
            "engine: llama.cpp\nweights: ${weights}",
            f"7:18: {P}.weights: ${{weights}} inside weights - write the path",
        ),
        (
            "engine: llama.cpp\nweights: {box2: '${prot}'}",
            f"7:25: {P}.weights.box2: unknown placeholder ${{prot}} - did you mean ${{port}}?",
        ),
        (
            "engine: ollama\nenv: {M: '${weights}'}",
            (
                f"6:9: {P}: the command uses ${{weights}} and there are none"
                " - add weights: /path/to/the/model"
            ),
        ),
        (
            "command: [x]\ngpus_exact: [box1:0, box1:0]",
            f"7:9: {P}: gpus_exact names box1:0 twice - name each GPU once",
        ),
        (
            "command: [x]\ngpus: 2\ngpus_exact: [box1:0]",
            f"8:9: {P}: gpus_exact names 1 GPU, and gpus is 2 - name as many GPUs as gpus says, or take gpus out",
        ),
        (
            "command: [x]\nnodes: 2\ngpus: 1\ngpus_exact: [box1:0]",
            (
                f"9:9: {P}: gpus_exact names 1 GPU, and gpus is 1 on each of 2 nodes"
                " - name as many GPUs as gpus says, or take gpus out"
            ),
        ),
        ("command: [x]\nimage: a", f"7:9: {P}: an image, and launcher exec - take the image out"),
        (
            "command: [x]\ngpu_memory: 1GiB",
            f"7:9: {P}: gpu_memory, and gpus is 0: it would run on the CPU - add gpus: 1",
        ),
        (
            "command: [x]\ngpus: 1\ngpu_memory: 0GiB",
            f"8:9: {P}: gpu_memory of nothing - leave it out for the whole GPU",
        ),
        (
            "command: [x]\nworker_args: [y]",
            (
                f"7:9: {P}: worker_args, and nodes is 1: there are no workers"
                " - add nodes: 2, or take it out"
            ),
        ),
        (
            "engine: rpc\nweights: /m",
            f"6:9: {P}: engine rpc has workers, and nodes is 1 - add nodes: 2",
        ),
        (
            "command: [x]\nready: {failures: 6}",
            f"7:17: {P}.ready: 6 failures of 5 probes cannot happen - lower failures or raise of",
        ),
    ],
)
def test_a_profile_s_keys_go_together(
    lines: str, problem: str, refused: Refused, in_profile: InProfile
) -> None:
    assert refused(in_profile(lines)) == (problem,)


def test_a_container_needs_an_image(refused: Refused, in_profile: InProfile) -> None:
    assert refused(in_profile("launcher: docker")) == (
        f"6:9: {P}: launcher docker and no image - add image: …",
    )


def test_an_image_is_no_option_of_its_runtime(refused: Refused, in_profile: InProfile) -> None:
    assert refused(in_profile("launcher: podman\nimage: --privileged")) == (
        f'7:16: {P}.image: "--privileged" is not an image\'s name, like ghcr.io/a/b:1 - did you mean "privileged"?',
    )


@pytest.mark.parametrize(
    ("mounts", "problem"),
    [
        ("[/a]", '7:18: {P}.mounts[0]: "/a" is no mount - write SOURCE:TARGET or SOURCE:TARGET:ro'),
        (
            "[a:/b]",
            '7:18: {P}.mounts[0]: "a:/b": "a" is not an absolute path - write the whole path',
        ),
        (
            "['/a:/b/../c:ro']",
            '7:18: {P}.mounts[0]: "/a:/b/../c:ro": "/b/../c" goes up by .. - write the whole path',
        ),
        (
            "['/${api_key}:/b']",
            "7:18: {P}.mounts[0]: ${api_key} in a command shows in `ps` - set it in env, where the engine reads it",
        ),
        ("['/a:/b', '/c:/b:ro']", "7:9: {P}: /b is mounted twice - take one of them out"),
    ],
)
def test_a_mount_is_two_whole_paths(
    mounts: str, problem: str, refused: Refused, in_profile: InProfile
) -> None:
    said = refused(in_profile(f"image: a\nmounts: {mounts}\nlauncher: podman"))
    assert said == (problem.replace("{P}", P),)


def test_mounts_are_of_a_container(refused: Refused, in_profile: InProfile) -> None:
    assert refused(in_profile("command: [x]\nmounts: ['/a:/b']")) == (
        f"7:9: {P}: mounts, and launcher exec: it sees the host as it is - take them out",
    )


def test_a_key_that_is_wrong_brings_no_second_complaint(
    refused: Refused, in_profile: InProfile
) -> None:
    for lines in (
        "command: x",
        "engine: [a]",
        "command: [x]\nnodes: two\nworker_args: [y]",
        "command: [x]\ngpu_memory: 1GiB\ngpus: one",
    ):
        assert len(refused(in_profile(lines))) == 1, lines


@pytest.mark.parametrize(
    "lines",
    [
        "engine: llama.cpp\nweights: /m",
        "engine: ollama",
        "engine: rpc\nweights: /m\nnodes: 3",
        "engine: vllm\nweights: /m\nnodes: 2\nleader_args: []\nworker_args: [--headless]\nfabric: ib0",
        "command: [x]\nnodes: 2\nworker_command: [y]\nstart_order: workers_first",
        "command: [x]\nready: {failures: 9, of: 9, token: true}",
        "command: [x]\ngpus: 1\ngpu_memory: 1GiB\npool: big\nselect: {gpu: 3090}\npower_w: 12.5\ninsecure: true",
    ],
)
def test_these_do(lines: str, loaded: Callable[[str], object], in_profile: InProfile) -> None:
    loaded(in_profile(lines))


def test_an_engine_of_one_s_own_needs_a_command(refused: Refused, in_profile: InProfile) -> None:
    text = in_profile("engine: mine") + "engines: {mine: {env: {A: 1}}}\n"
    assert refused(text) == (f"6:9: {P}: engine mine has no command - give it one, or the profile",)
    text = in_profile("engine: mine") + "engines: {mine: {command: x}}\n"
    assert len(refused(text)) == 1


def test_an_engine_is_checked_where_it_stands(refused: Refused, in_profile: InProfile) -> None:
    text = (
        in_profile("command: [x]")
        + "engines:\n  mine:\n    command: [x, '${prot}']\n    ready: {of: 2}\n"
    )
    assert refused(text) == (
        "9:18: engines.mine.command[1]: unknown placeholder ${prot} - did you mean ${port}?",
        "10:13: engines.mine.ready: 3 failures of 2 probes cannot happen - lower failures or raise of",
    )


def test_names_mean_one_thing(refused: Refused) -> None:
    text = """\
version: 1
models:
  a:
    aliases: [x, b, "c-*", x, a]
    profiles: [{name: p, command: [x]}, {name: p, command: [y]}]
  b:
    aliases: [x, "c-*", "c-1*"]
    profiles: [{name: p, command: [x]}]
  "no good":
    aliases: ["not one", "?", "ok/such:as-this.1"]
    profiles: [{name: p, command: [x]}]
"""
    name = "a name of letters, digits, . _ - (at most 63, the first a letter or digit)"
    alias = "an alias of letters, digits, . _ - / : (at most 63), with * as a wildcard"
    assert refused(text) == (
        '4:18: models.a.aliases: "b" is the name of another model, c.yaml:6:3 - take it out',
        '4:28: models.a.aliases: "x" is here twice - take one of them out',
        '4:31: models.a.aliases: "a" is this model\'s own name - take it out',
        '5:42: models.a.profiles[p]: name "p" is taken by c.yaml:5:17 - rename one',
        '7:15: models.b.aliases: "x" is also an alias of a, c.yaml:4:15 - take one of them out',
        '7:18: models.b.aliases: "c-*" is also an alias of a, c.yaml:4:21 - take one of them out',
        f'9:3: models: "no good" is not {name} - did you mean "no-good"?',
        f'10:15: models.no good.aliases[0]: "not one" is not {alias} - did you mean "not-one"?',
        f'10:26: models.no good.aliases[1]: "?" is not {alias} - write another one',
    )


@pytest.mark.parametrize(
    ("defaults", "scaling", "problem"),
    [
        (
            "{}",
            "{min: 3, max: 2}",
            "4:23: models.q.scaling: min 3 is more than max 2 - raise max or lower min",
        ),
        (
            "{scaling: {max: 2}}",
            "{min: 3}",
            "4:15: models.q.scaling: min 3 is more than max 2 - raise max or lower min",
        ),
        (
            "{scaling: {max: 2, min: 3}}",
            "{min_up: 1m}",
            "2:22: models.q.scaling: min 3 is more than max 2 (by defaults) - raise max or lower min",
        ),
    ],
)
def test_min_and_max(defaults: str, scaling: str, problem: str, refused: Refused) -> None:
    model = f"{{profiles: [{{name: p, command: [x]}}],\n    scaling: {scaling}}}"
    text = f"version: 1\ndefaults: {defaults}\nmodels: {{q: {model}}}\n"
    assert refused(text) == (problem,)


def test_a_model_needs_a_profile(refused: Refused) -> None:
    assert refused("version: 1\nmodels: {q: {profiles: []}}\n") == (
        "2:14: models.q: no profiles - it needs one: - name: main",
    )
