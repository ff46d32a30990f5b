"""Types, units and ranges: each refusal says where, what and what to try."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw.core.types.catalog import Catalog, Profile

Refused = Callable[[str], tuple[str, ...]]
InProfile = Callable[[str], str]

P = "models.q.profiles[main]"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "gpus: two",
            f'6:15: {P}.gpus: "two" is not a whole number - digits only: no unit, no quotes',
        ),
        (
            "weight: /models/x",
            f'6:17: {P}.weight: "/models/x" is not a whole number - did you mean "weights"?',
        ),
        (
            "weight: two",
            f'6:17: {P}.weight: "two" is not a whole number - digits only: no unit, no quotes',
        ),
        ("gpus: '1'", f'6:15: {P}.gpus: "1" is not a whole number - take the quotes off'),
        (
            "gpus: 1.0",
            f'6:15: {P}.gpus: "1.0" is not a whole number - digits only: no unit, no quotes',
        ),
        (
            "gpus: 010",
            f'6:15: {P}.gpus: "010" is not a whole number - digits only: no unit, no quotes',
        ),
        ("gpus: -1", f"6:15: {P}.gpus: -1 is too small - at least 0"),
        ("gpus: 9999999999", f"6:15: {P}.gpus: 9999999999 is too big - at most 1e+09"),
        (
            "gpus: [1]",
            f"6:15: {P}.gpus: wants a whole number, not a list - write a whole number here",
        ),
        ("gpus:", f"6:14: {P}.gpus: no value - give one, or take the line out"),
        ("gpus: ~", f"6:15: {P}.gpus: no value - give one, or take the line out"),
        ("nodes: 0", f"6:16: {P}.nodes: 0 is too small - at least 1"),
        (
            "cpu_cores: many",
            f'6:20: {P}.cpu_cores: "many" is not a number - digits only: no unit, no quotes',
        ),
        (
            "cpu_cores: .inf",
            f'6:20: {P}.cpu_cores: ".inf" is not a number - digits only: no unit, no quotes',
        ),
        ("power_w: -3.5", f"6:18: {P}.power_w: -3.5 is too small - at least 0"),
        (
            "gpu_memory: 18",
            f"6:21: {P}.gpu_memory: 18 has no unit - which unit? write 18GiB or 18MiB",
        ),
        ("host_memory: 4G", f'6:22: {P}.host_memory: "4G" is not a size - write 4GiB'),
        (
            "start_timeout: 90",
            f"6:24: {P}.start_timeout: 90 has no unit - which unit? write 90s, 90m or 90h",
        ),
        (
            "start_timeout: never",
            f"6:24: {P}.start_timeout: never is not possible here - give a time like 10m",
        ),
        (
            "insecure: yes",
            f'6:19: {P}.insecure: "yes" is not true or false - write true, without quotes',
        ),
        (
            "insecure: 'true'",
            f'6:19: {P}.insecure: "true" is not true or false - write true, without quotes',
        ),
        (
            "insecure: maybe",
            f'6:19: {P}.insecure: "maybe" is not true or false - write true or false',
        ),
        (
            "launcher: dokcer",
            f'6:19: {P}.launcher: "dokcer" is not known - did you mean "docker"? (one of exec, docker, podman)',
        ),
        ("launcher: k8s", f'6:19: {P}.launcher: "k8s" is not known - one of exec, docker, podman'),
        (
            "compute: cuda",
            f'6:18: {P}.compute: "cuda" is not known - one of llama.cpp, vllm, sglang, ollama',
        ),
        (
            "health: health",
            f'6:17: {P}.health: "health" is not a path that begins with / - did you mean "/health"?',
        ),
        (
            "pool: my pool",
            (
                f'6:15: {P}.pool: "my pool" is not a name of letters, digits, . _ - '
                '(at most 63, the first a letter or digit) - did you mean "my-pool"?'
            ),
        ),
        (
            "pool: ''",
            (
                f'6:15: {P}.pool: "" is not a name of letters, digits, . _ - (at most 63, the first a letter or digit)'
                " - write another one"
            ),
        ),
        (
            "args: -c 32768",
            (
                f"6:15: {P}.args: wants a list, not one value - write a list, [program, --flag, value]; "
                "where a shell is meant: [sh, -c, …]"
            ),
        ),
        (
            "args: [a, [b]]",
            f"6:19: {P}.args[1]: wants one value, not a list - write one value here",
        ),
        (
            "args: [a, {b: c}]",
            f"6:19: {P}.args[1]: wants one value, not a mapping - write one value here",
        ),
        (
            "env: [A=1]",
            f"6:14: {P}.env: wants a mapping (key: value), not a list - write a mapping (key: value) here",
        ),
        ("env: {A: }", f'6:18: {P}.env.A: no value - write "" for an empty one'),
        (
            "env: {A-B: 1}",
            f'6:15: {P}.env: "A-B" is not a variable\'s name of letters, digits and _ - did you mean "A_B"?',
        ),
        ("env: {LLMGW_NODE: 1}", f"6:15: {P}.env: LLMGW_NODE is set by llmgw itself - take it out"),
        ("weights: [a]", f"6:18: {P}.weights: wants one value, not a list - write one value here"),
        (
            "weights: {box1: [a]}",
            f"6:25: {P}.weights.box1: wants one value, not a list - write one value here",
        ),
        (
            "stop: {signal: SIGTERM}",
            (
                f'6:24: {P}.stop.signal: "SIGTERM" is not known - did you mean "TERM"? '
                "(one of TERM, INT, QUIT, HUP, USR1, USR2, KILL)"
            ),
        ),
        (
            "stop: 20s",
            f"6:15: {P}.stop: wants a mapping (key: value), not one value - write a mapping (key: value) here",
        ),
        (
            "args: ['${prot}']",
            f"6:16: {P}.args[0]: unknown placeholder ${{prot}} - did you mean ${{port}}?",
        ),
        (
            "ttl: 5m",
            f'6:9: unknown key "ttl" in {P} - did you mean "models.NAME.scaling.idle_timeout"?',
        ),
    ],
)
def test_refused(line: str, problem: str, refused: Refused, in_profile: InProfile) -> None:
    assert refused(in_profile(f"{line}\ncommand: [x]")) == (problem,)


def test_who_makes_room_for_whom_is_read(loaded: Callable[[str], Catalog]) -> None:
    text = "scaling: {priority: 1, yield_after: 5m, cost: 3}"
    found = loaded(
        f"version: 1\nmodels:\n  q:\n    {text}\n    profiles: [{{name: main, command: [x]}}]\n"
    )
    scaling = found.models["q"].scaling
    assert (scaling.priority, scaling.yield_after_s, scaling.cost) == (1, 300.0, 3.0)


@pytest.mark.parametrize(
    "lines",
    [
        "scaling: {priority: 0, yield_after: 120s, max: 4}",
    ],
)
def test_its_default_may_be_said_aloud(lines: str, loaded: Callable[[str], object]) -> None:
    loaded(
        f"version: 1\nmodels:\n  q:\n    {lines}\n    profiles: [{{name: main, command: [x], sleep: off}}]\n"
    )


def test_scalars_in_command_args_and_env_are_taken_as_written(
    profile: Callable[..., Profile],
) -> None:
    got = profile(
        "command: [llama-server, --port, 8080]\n"
        "args: [-c, 32768, --temp, 1.10, yes, on, no, 0x10, 010, null, ~, '', true, 1e3, 2024-01-01, 1_000]\n"
        "env: {A: yes, B: 010, C: 1.10, D: null, E: '', F: 1}"
    )
    assert got.command[:3] == ("llama-server", "--port", "8080")
    assert got.command[3:] == (
        *(
            "-c",
            "32768",
            "--temp",
            "1.10",
            "yes",
            "on",
            "no",
            "0x10",
            "010",
            "null",
            "~",
            "",
            "true",
            "1e3",
        ),
        *("2024-01-01", "1_000"),
    )
    assert got.env == {"A": "yes", "B": "010", "C": "1.10", "D": "null", "E": "", "F": "1"}


def test_every_problem_is_told_not_only_the_first(refused: Refused) -> None:
    problems = refused(
        "modles: {}\ndefaults: {start_limit: 0, wait_timeout: 5}\ncircuits: {a: {}, b: {power_w: 0}}\n"
    )
    assert problems == (
        '1:1: "version" is missing - begin the file with: version: 1',
        '1:1: unknown key "modles" - did you mean "models"?',
        "2:25: defaults.start_limit: 0 is too small - at least 1",
        "2:42: defaults.wait_timeout: 5 has no unit - which unit? write 5s, 5m or 5h",
        '3:12: circuits.a: "power_w" is missing - write power_w: 1500',
        "3:32: circuits.b.power_w: 0 is too small - more than 0",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", '1:1: "version" is missing - begin the file with: version: 1'),
        ("version: 2\n", '1:10: version: "2" is not known - write 1'),
        ("version: '1'\n", '1:10: version: "1" is text - take the quotes off'),
        (
            "- a\n",
            "1:1: the catalog: wants a mapping (key: value), not a list - write a mapping (key: value) here",
        ),
        (
            "hello\n",
            "1:1: the catalog: wants a mapping (key: value), not one value - write a mapping (key: value) here",
        ),
        (
            "version: 1\nmodels: {q: {profiles: {main: {gpus: 1}}}}\n",
            '2:24: models.q.profiles: wants a list, not a mapping - write a list: "profiles:", then "- name: main"',
        ),
        (
            "version: 1\nmodels:\n  q:\n",
            '3:3: models.q: "profiles" is missing - models.q needs it: profiles: [{name: main, …}]',
        ),
        (
            "version: 1\nmodels: {q: {profiles: [{command: [x]}]}}\n",
            '2:25: models.q.profiles[0]: "name" is missing - write - name: main',
        ),
    ],
)
def test_the_shape_of_the_file(text: str, problem: str, refused: Refused) -> None:
    assert refused(text) == (problem,)


def test_empty_sections_are_empty(loaded: Callable[[str], object]) -> None:
    loaded("version: 1\nmodels:\ncircuits:\nengines: {}\ndefaults:\n")
    loaded(
        "version: 1\nmodels: {q: {aliases: , scaling: , profiles: [{name: main, command: [x], args: , env: }]}}\n"
    )


def test_anchors_serve_a_catalog(loaded: Callable[[str], object]) -> None:
    """Anchors stand in real keys: there is no place for a key that nobody knows."""
    text = """
version: 1
models:
  a:
    profiles:
      - &base {name: main, command: [x, "${port}"], args: &args [-c, 1], gpus: 1}
  b:
    profiles:
      - {<<: *base, name: other, gpus: 2}
      - {name: third, command: [y], args: *args}
"""
    models = loaded(text).models  # type: ignore[attr-defined]
    assert [(p.name, p.gpus, p.command) for p in models["b"].profiles] == [
        ("other", 2, ("x", "${port}", "-c", "1")),
        ("third", 0, ("y", "-c", "1")),
    ]


def test_aliases_that_multiply_are_refused_in_time(refused: Refused) -> None:
    more = "".join(f"  m{i}: {{profiles: *p}}\n" for i in range(3000))
    words = ", x" * 300
    profiles = f"[{{name: a, command: &c [x{words}]}}{', {name: b, command: *c}' * 300}]"
    problems = refused(f"version: 1\nmodels:\n  m: {{profiles: &p {profiles}}}\n{more}")
    assert [problem.partition(": ")[2] for problem in problems] == [
        "more than 200000 values - anchors that multiply? write less"
    ]
