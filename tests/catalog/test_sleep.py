"""`sleep` of a profile: by doors that its engine's data name, part of the process only by what it adds to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw import catalog
from llmgw.core.types.catalog import Profile
from llmgw.core.types.sleep import Doors

VLLM = "engine: vllm\nweights: /m\ngpus: 1"
MINE = """
engines:
  mine:
    command: [serve]
    sleeps:
      asleep: /asleep
      args: [--may-sleep]
      env: {A: "1", B: "2"}
      levels:
        1: {sleep: [/down], wake: [/up, '/load {"x": 1}']}
"""
ON = "engine: mine\nsleep: 1\nenv: {B: mine}"
WHERE = "models.q.profiles[main]: sleep:"
NO_WAY = "has no way to be put to sleep by order - take it out, or name an engine that has (vllm)"


def test_off_is_the_default_and_asks_for_nothing(profile: Callable[..., Profile]) -> None:
    plain, off = profile(VLLM), profile(f"{VLLM}\nsleep: off")
    assert plain == off
    assert plain.sleep is None
    assert "--enable-sleep-mode" not in plain.command


def test_vllm_at_level_1(profile: Callable[..., Profile]) -> None:
    got = profile(f"{VLLM}\nargs: [--x]\nsleep: 1")
    assert got.command[-2:] == ("--x", "--enable-sleep-mode")
    assert got.env["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" in got.template_env
    assert got.sleep == Doors(
        level=1,
        asleep="/is_sleeping",
        sleep=("/sleep?level=1",),
        wake=("/wake_up",),
        canary=True,
    )


def test_vllm_at_level_2_loads_its_weights_between_the_halves_of_waking(
    profile: Callable[..., Profile],
) -> None:
    doors = profile(f"{VLLM}\nsleep: 2").sleep
    assert doors is not None
    assert doors.sleep == ("/sleep?level=2",)
    assert [step.partition(" ")[0] for step in doors.wake] == [
        "/wake_up?tags=weights",
        "/collective_rpc",
        "/wake_up?tags=kv_cache",
    ]
    assert doors.wake[1] == '/collective_rpc {"method": "reload_weights"}'


def test_it_is_another_process_with_sleep_and_the_same_at_any_level(
    profile: Callable[..., Profile],
) -> None:
    off, one, two = (profile(f"{VLLM}\nsleep: {level}").fingerprints for level in ("off", 1, 2))
    assert off != one == two


def test_ways_of_ones_own_count_as_written(profile: Callable[..., Profile]) -> None:
    got = profile(ON, rest=MINE)
    assert got.command == ("serve", "--may-sleep")
    assert got.env == {"A": "1", "B": "mine"}, "what somebody wrote wins"
    assert got.sleep == Doors(
        level=1, asleep="/asleep", sleep=("/down",), wake=("/up", '/load {"x": 1}'), canary=True
    )
    other = profile(ON, rest=MINE.replace("--may-sleep", "--may-doze"))
    assert got.fingerprints != other.fingerprints
    bare = MINE.replace("      args: [--may-sleep]\n", "").replace(
        '      env: {A: "1", B: "2"}\n', ""
    )
    assert (
        profile(ON, rest=bare).fingerprints
        == profile(ON.replace("sleep: 1", "sleep: off"), rest=bare).fingerprints
    ), "what changes no process changes no fingerprint"


def test_a_model_without_tokens_is_asked_for_none(in_profile: Callable[[str], str]) -> None:
    text = in_profile(f"{VLLM}\nsleep: 1").replace("  q:\n", "  q:\n    kind: embed\n")
    doors = catalog.loads(text).models["q"].profiles[0].sleep
    assert doors is not None
    assert doors.canary is False


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "engine: llama.cpp\nweights: /m\nsleep: 1",
            f"8:9: {WHERE} 1, and engine llama.cpp {NO_WAY}",
        ),
        (
            "command: [x]\nsleep: 2",
            f"7:9: {WHERE} 2, and its command {NO_WAY}",
        ),
        (
            f"{VLLM}\nnodes: 2\nsleep: 1",
            f"10:9: {WHERE} 1, and nodes is 2 - sleep is for one node: take it out",
        ),
        (
            "command: [x]\nsleep: 2\nsleeps: {asleep: /a, levels: {1: {}}}",
            f"7:9: {WHERE} 2, and its command has no such level - it has 1",
        ),
    ],
)
def test_who_cannot_sleep_is_refused(
    lines: str,
    said: str,
    refused: Callable[[str], tuple[str, ...]],
    in_profile: Callable[[str], str],
) -> None:
    assert refused(in_profile(lines)) == (said,)


def test_a_level_that_is_none_and_a_door_that_is_no_path(
    refused: Callable[[str], tuple[str, ...]], in_profile: Callable[[str], str]
) -> None:
    problems = refused(
        in_profile("command: [x]\nsleeps: {asleep: /a, levels: {3: {sleep: [down]}}}")
    )
    assert len(problems) == 2
    assert any("a sleep level, 1 or 2" in p for p in problems)
    assert any("a path that begins with /, and a JSON body after a space" in p for p in problems)


@pytest.mark.parametrize(("old", "new"), [("off", 1), (1, "off"), (1, 2)])
def test_a_reload_tells_it(old: object, new: object, in_profile: Callable[[str], str]) -> None:
    before, after = (catalog.loads(in_profile(f"{VLLM}\nsleep: {n}")) for n in (old, new))
    said = [change.sentence for change in catalog.diff(before, after)]
    words = {"off": "unset", 1: "level 1"}
    if 2 in (old, new):
        assert "q/main: sleep.level: 1 -> 2 (next start)" in said
    else:
        assert f"q/main: sleep: {words[old]} -> {words[new]} (next start)" in said
        assert any(s.endswith("(restart)") for s in said)
