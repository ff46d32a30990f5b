"""What a reload changes: one sentence each, classed by what it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmgw import catalog
from llmgw.core.types.catalog import Catalog

Load = Callable[[str], Catalog]

BASE = """\
version: 1
models:
  q:
    aliases: [r]
    profiles:
      - name: main
        engine: llama.cpp
        weights: /m
        args: [-c, 32768, -ngl, 99]
        env: {A: 1, HF_TOKEN: abc}
        gpus: 1
      - name: cpu
        command: [x]
"""


def changes(old: str, new: str) -> list[str]:
    return [change.sentence for change in catalog.diff(catalog.loads(old), catalog.loads(new))]


@pytest.mark.parametrize(
    ("before", "after", "sentences"),
    [
        (
            "args: [-c, 32768, -ngl",
            "args: [-c, 65536, -ngl",
            ["q/main: args: -c 32768 -> 65536 (restart)"],
        ),
        ("-ngl, 99]", "-ngl, 99, --mlock, -fa]", ["q/main: args: with --mlock -fa (restart)"]),
        ("[-c, 32768, -ngl, 99]", "[-ngl, 99]", ["q/main: args: without -c 32768 (restart)"]),
        ("command: [x]", "command: [/opt/x]", ["q/cpu: command: x -> /opt/x (restart)"]),
        ("{A: 1,", "{A: 2,", ["q/main: env.A: 1 -> 2 (restart)"]),
        ("HF_TOKEN: abc", "HF_TOKEN: def", ["q/main: env.HF_TOKEN: *** -> *** (restart)"]),
        (
            "{A: 1, HF_TOKEN: abc}",
            "{HF_TOKEN: abc, B: 3}",
            ["q/main: env.A: without 1 (restart)", "q/main: env.B: with 3 (restart)"],
        ),
        ("weights: /m", "weights: /n", ["q/main: weights.default: /m -> /n (restart)"]),
        ("gpus: 1", "gpus: 2", ["q/main: gpus: 1 -> 2 (restart)"]),
        (
            "gpus: 1",
            "gpus: 1\n        nodes: 2\n        worker_args: [-x]",
            ["q/main: worker_args: with -x (restart)", "q/main: nodes: 1 -> 2 (restart)"],
        ),
        ("gpus: 1", "gpus: 1\n        weight: 5", ["q/main: weight: 1 -> 5 (live)"]),
        (
            "gpus: 1",
            "gpus: 1\n        drain_timeout: 5m",
            ["q/main: drain_timeout: 2m -> 5m (live)"],
        ),
        (
            "gpus: 1",
            "gpus: 1\n        start_timeout: 1h",
            ["q/main: start_timeout: 15m -> 1h (next start)"],
        ),
        (
            "gpus: 1",
            "gpus: 1\n        restart: {max: 2, backoff: 1s}",
            [
                "q/main: restart.max: 5 -> 2 (next start)",
                "q/main: restart.backoff: 5s -> 1s (next start)",
            ],
        ),
        (
            "gpus: 1",
            "gpus: 1\n        gpu_memory: 18GiB",
            ["q/main: gpu_memory: whole GPU -> 18GiB (next start)"],
        ),
        (
            "gpus: 1",
            "gpus: 1\n        select: {gpu: big}",
            ["q/main: select.gpu: with big (next start)"],
        ),
        ("gpus: 1", "gpus: 1\n        fabric: ib0", ["q/main: fabric: unset -> ib0 (next start)"]),
        ("aliases: [r]", "aliases: [r, s]", ["q: aliases: r -> r, s (live)"]),
        ("aliases: [r]", "aliases: []", ["q: aliases: r -> none (live)"]),
        (
            "aliases: [r]",
            "aliases: [r]\n    scaling: {idle_timeout: never}",
            ["q: scaling.idle_timeout: 10m -> never (live)"],
        ),
        (
            "aliases: [r]",
            "aliases: [r]\n    requests: {queue: 1}",
            ["q: requests.queue: 128 -> 1 (live)"],
        ),
        ("models:", "defaults: {stray_grace: 5m}\nmodels:", ["stray_grace: 1m -> 5m (live)"]),
        ("models:", "circuits: {a: {power_w: 5}}\nmodels:", ["circuits.a: with 5.0 (live)"]),
        ("name: cpu", "name: slow", ["q/cpu: renamed to slow (live)", "q/slow: added"]),
        (
            "      - name: cpu\n        command: [x]\n",
            "",
            ["q/cpu: removed: its engines will be stopped"],
        ),
        (
            "  q:\n",
            "  q2:\n",
            ["q: removed: its engines will be stopped", "q2: added"],
        ),
        (
            "  q:\n    aliases: [r]",
            "  q2:\n    aliases: [q]",
            ["q: now an alias of q2, which takes its engines over (removed)", "q2: added"],
        ),
        ("gpus: 1", "gpus: 1\n        power_w: 0", []),
    ],
)
def test_one_sentence_each(before: str, after: str, sentences: list[str]) -> None:
    assert BASE.count(before) == 1
    assert changes(BASE, BASE.replace(before, after)) == sentences


def test_an_edited_secret_argument_stays_secret() -> None:
    old = BASE.replace("[x]", "[x, --api-key=abc, --port, 1]")
    assert changes(old, old.replace("=abc", "=def")) == [
        "q/cpu: args: --api-key=*** -> --api-key=*** (restart)"
    ]
    assert changes(old, old.replace("--port", "--prt")) == [
        "q/cpu: args: --api-key=*** --port -> --prt (restart)"
    ]


def test_the_order_of_profiles_is_a_live_change() -> None:
    text = (
        "version: 1\nmodels: {q: {profiles: [{name: a, command: [x]}, {name: b, command: [x]}]}}\n"
    )
    turned = (
        "version: 1\nmodels: {q: {profiles: [{name: b, command: [x]}, {name: a, command: [x]}]}}\n"
    )
    assert changes(text, turned) == ["q: profiles: now in the order b, a (live)"]


def test_a_template_written_out_is_another_process_even_where_it_reads_the_same() -> None:
    override = "engines:\n  llama.cpp:\n    env: {LLAMA_API_KEY: '${api_key}'}\n"
    (only,) = changes(BASE, BASE + override)
    assert only.startswith("q/main: fingerprint: 1:")
    assert only.endswith("(restart)")


def test_a_newer_template_is_for_the_next_start(loaded: Load) -> None:
    """The fingerprint covers a built-in engine by its name only."""
    old = loaded(BASE)
    model = old.models["q"]
    from msgspec.structs import replace  # noqa: PLC0415 - what an upgrade of llmgw does, done by hand

    newer = replace(model.profiles[0], command=("llama-server", "--new-flag"))
    new = replace(old, models={"q": replace(model, profiles=(newer, model.profiles[1]))})
    assert [change.effect for change in catalog.diff(old, new)] == ["next start"]


def test_nothing_changed(loaded: Load) -> None:
    assert catalog.diff(loaded(BASE), loaded("# a comment\n" + BASE)) == []
