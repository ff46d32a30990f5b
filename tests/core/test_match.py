"""Whether a hand-started process runs what a profile asks for: words against words (A70, A71)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.core import match
from llmgw.core.adopt.foreign import Engine, engines, facts, nearest, one_too_many
from llmgw.core.types.by_hand import Fact, Started
from llmgw.core.types.catalog import Catalog, Model, Profile
from llmgw.core.types.messages import Foreign, Gpu, NodeReport
from llmgw.core.types.plan import Plan, Replica

WHERE = ("--host", "${host}", "--port", "${port}")
LLAMA = ("llama-server", "--model", "${weights}", *WHERE, "--alias", "${model}")
GGUF = "/models/qwen.gguf"
KNOWN = match.Known({"port": "8080"}, GGUF, "/home/me")


def differing(command: tuple[str, ...], line: str, known: match.Known = KNOWN) -> list[str]:
    return [f.what for f in match.compare(command, line.split(), known) if not f.same]


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        ("/opt/bin/llama-server -m x", "llama-server"),
        ("/usr/bin/python3.11 -u /srv/tabby/main.py --port 1", "main.py"),
        ("/usr/bin/python3 /usr/local/bin/vllm serve x", "vllm"),
        ("python -I -m sglang.launch_server --port 1", "sglang.launch_server"),
        ("python -m", ""),
        ("python -c pass", "python"),
        ("bash", "bash"),
        ("sh -ec exec", "sh"),
        ("", ""),
    ],
)
def test_what_runs_is_told_by_the_program_or_the_script_of_an_interpreter(
    argv: str, program: str
) -> None:
    assert match.program(argv.split()) == program


@pytest.mark.parametrize(
    ("line", "differs"),
    [
        ("llama-server --model /models/qwen.gguf --port 8080", []),
        ("/opt/llama-server --port=8080 -m /models/qwen.gguf --host 0.0.0.0", []),
        (
            "llama-server -m /models/qwen.gguf",
            [],
        ),  # it listens on a port all the same: seen by looking
        ("llama-server -m /models/qwen.gguf --api-key sesame -a other-name", []),
        ("llama-server -m ../../models/qwen.gguf", ["--model"]),  # not followed: links may be in it
        ("llama-server -m /models/other.gguf", ["--model"]),
        ("llama-server", ["--model"]),
        ("llama-server -m", ["--model"]),
        ("llama-server -m /models/qwen.gguf -m /models/qwen.gguf", ["--model"]),
        ("llama-server -m /models/qwen.gguf -c 16384", ["-c"]),
        ("llama-server -m /models/qwen.gguf --no-mmap", ["--no-mmap"]),
        ("ollama serve", ["program", "arguments", "--model"]),
    ],
)
def test_a71_each_option_under_one_of_its_names_in_any_order(line: str, differs: list[str]) -> None:
    assert differing(LLAMA, line) == differs


def test_a71_what_differs_is_worded_as_it_is_written() -> None:
    command = (*LLAMA, "-c", "32768", "--jinja", "--mlock")
    line = "llama-server -m /models/qwen.gguf -c 16384 --mlock --keep -1 --name="
    compared = match.compare(command, line.split(), KNOWN)
    assert match.words(compared) == (
        "-c 16384 instead of 32768; --jinja nothing instead of set; --keep -1 instead of nothing; "
        "--name '' instead of nothing"
    )
    assert Fact("--mlock", "set", "set", same=True) in compared
    assert Fact("--model", GGUF, GGUF, same=True) in compared


def test_a_relative_path_counts_from_the_folder_of_the_process() -> None:
    known = replace(KNOWN, cwd="/models")
    assert differing(LLAMA, "llama-server -m ./qwen.gguf", known) == []
    assert differing(LLAMA, "llama-server -m qwen.gguf", known) == []
    assert differing(LLAMA, "llama-server -m qwen.gguf", replace(known, cwd="")) == ["--model"]


def test_positional_words_count_and_underscores_are_dashes() -> None:
    vllm = (
        "vllm",
        "serve",
        "${weights}",
        "--served-model-name",
        "${model}",
        "--max-model-len",
        "8",
    )
    known = match.Known(weights="org/name")
    assert differing(vllm, "python3 /usr/bin/vllm serve org/name --max_model_len 8", known) == []
    assert differing(vllm, "vllm serve org/other --max-model-len 8", known) == ["arguments"]
    assert differing(vllm, "vllm serve --max-model-len 8", known) == ["arguments"]
    assert (
        differing(
            (*vllm, "-tp", "2"),
            "vllm serve org/name --max-model-len 8 --tensor-parallel-size 2",
            known,
        )
        == []
    )


def test_placeholders_that_are_not_known_stand_for_anything() -> None:
    command = (
        "e",
        "--log",
        "${log_path}",
        "--m",
        "${env.MODELS}/x",
        "--price",
        "$$5",
        "--p2",
        "1${port}",
    )
    line = "e --log /tmp/l --m /srv/x --price $5 --p2 18080"
    assert differing(command, line) == []
    assert differing(command, line.replace("/srv/x", "/srv/y")) == ["--m"]
    assert match.filled("${env.MODELS}/$$${port}", KNOWN) == "${env.MODELS}/$8080"
    weights = replace(KNOWN, weights="${env.MODELS}/x.gguf")
    assert differing(LLAMA, "llama-server -m /a/x.gguf", weights) == []


def test_keys_are_hidden_and_found() -> None:
    argv = [
        "llama-server",
        "--api-key",
        "sesame",
        "--hf-token=t0",
        "--tokens",
        "3",
        "--api_key",
        "x",
    ]
    assert match.hidden(argv) == (
        *(
            "llama-server",
            "--api-key",
            "***",
            "--hf-token=***",
            "--tokens",
            "3",
            "--api_key",
            "***",
        ),
    )
    assert match.key_in(argv) == "sesame"
    assert match.key_in(["llama-server", "--api-key"]) == ""


def test_the_name_it_answers_to() -> None:
    assert match.served_name(LLAMA, ["llama-server", "-a", "mine"], GGUF) == "mine"
    assert match.served_name(LLAMA, ["llama-server"], GGUF) == GGUF
    assert match.served_name(("e", "--n", "x${model}"), ["e"], GGUF) == ""


def test_of_the_environment_what_the_profile_sets_is_compared() -> None:
    env = {
        "LLAMA_API_KEY": "${api_key}",
        "OLLAMA_HOST": "${host}:${port}",
        "OLLAMA_KEEP_ALIVE": "-1",
        "A": "${env.A}",
        "HF_TOKEN": "t1",
    }
    has = {"OLLAMA_KEEP_ALIVE": "5m", "HF_TOKEN": "t2", "LD_PRELOAD": "x"}
    seen = list(match.environment(env, has, KNOWN))
    assert seen == [
        Fact("OLLAMA_KEEP_ALIVE", "-1", "5m", same=False),
        Fact("A", "${env.A}", "unset", same=False),
        Fact("HF_TOKEN", "***", "***", same=False),
    ]
    fine = match.environment(env, {"OLLAMA_KEEP_ALIVE": "-1", "A": "b", "HF_TOKEN": "t1"}, KNOWN)
    assert all(f.same for f in fine)


WORDS = st.lists(
    st.sampled_from(["-c", "1", "--x", "--x=2", "y", "-m", "--host", "/a"]), max_size=7
)


@given(WORDS)
def test_a71_a_line_is_like_itself_and_its_options_in_another_order(words: list[str]) -> None:
    line = match.line(["e", *words])
    same = match.compare(["e", *words], ["e", *words], match.Known())
    assert all(f.same for f in same)
    turned = [*line.words]
    for options in reversed(line.options.values()):
        for o in options:
            turned += (
                [o.name]
                if o.value is None
                else [f"{o.name}={o.value}" if o.name.startswith("--") else o.name]
            )
            turned += [o.value] if o.value is not None and not o.name.startswith("--") else []
    facts = match.compare(["e", *words], ["e", *turned], match.Known())
    assert all(f.same for f in facts), (words, turned)


@given(WORDS, WORDS)
def test_a71_nothing_is_found_alike_from_one_side_only(one: list[str], other: list[str]) -> None:
    """Without placeholders, what is compared is equal both ways round."""
    there = {f.what: f.same for f in match.compare(["e", *one], ["e", *other], match.Known())}
    back = {f.what: f.same for f in match.compare(["e", *other], ["e", *one], match.Known())}
    assert there == back


# ------------------------------------------------ the fleet

CATALOG = Catalog(
    models={
        "qwen": Model(
            name="qwen",
            profiles=(
                Profile(
                    name="big", command=(*LLAMA, "-c", "32768"), weights={"default": GGUF}, gpus=1
                ),
                Profile(name="cpu", command=LLAMA, weights={"default": GGUF}),
            ),
        ),
        "script": Model(name="script", profiles=(Profile(name="main", command=("sh", "-c", "x")),)),
    }
)
ARGV = ("llama-server", "-m", GGUF, "-c", "32768")


def report(*foreign: Foreign, **more: object) -> NodeReport:
    gpu = Gpu(uuid="GPU-0", index=0)
    return NodeReport(node="box2", foreign=foreign, **{"gpus": (gpu,), **more})  # type: ignore[arg-type]


def started(argv: tuple[str, ...] = ARGV) -> Started:
    return Started(pid=42, start_ticks=7, argv=argv, port=8080, cwd="/")


def one(rows: NodeReport) -> Engine:
    (found,) = engines(rows)
    return found


def test_a70_the_rows_of_one_engine_are_one() -> None:
    rows = report(
        Foreign(pid=43, gpu="GPU-0", memory_bytes=5, command="worker", by_hand=started()),
        Foreign(pid=42, command="llama-server", port=8080, by_hand=started()),
        Foreign(pid=9, gpu="GPU-0", memory_bytes=3, command="Xorg"),
        Foreign(pid=11, gpu="GPU-0", shard="a-1/0"),
    )
    desktop, engine = engines(rows)
    assert engines(report(Foreign(pid=9, port=1, why="is node old's")))[0].why == "is node old's"
    assert (desktop.pid, desktop.started, desktop.port) == (9, None, 0)
    assert nearest(CATALOG, rows, desktop) is None
    assert (engine.pid, engine.gpus, engine.memory_bytes, engine.port) == (42, ("GPU-0",), 5, 8080)
    found = nearest(CATALOG, rows, engine)
    assert found is not None
    assert (found.name, found.differing) == ("qwen/big", ())


def test_a70_the_profile_that_differs_least_is_named_and_why() -> None:
    rows = report(Foreign(pid=42, by_hand=started((*ARGV, "--mlock"))))
    found = nearest(CATALOG, rows, one(rows))
    assert found is not None
    assert found.name == "qwen/big"
    assert match.words(found.facts) == "--mlock set instead of nothing; GPUs 0 instead of 1"
    assert nearest(CATALOG, rows, one(report(Foreign(pid=42, by_hand=started(("x",)))))) is None


def test_a71_its_place_is_compared_too() -> None:
    rows = report(
        Foreign(pid=42, gpu="GPU-0", by_hand=started()), labels={"rack": "a"}, pools=("default",)
    )
    model = CATALOG.models["qwen"]
    engine = one(rows)
    base = replace(model.profiles[0], gpus=0, gpus_exact=("box2:0",), select={"rack": "a"})

    def wrong(profile: Profile) -> list[str]:
        compared = facts(rows, model, profile, engine, started())
        return [f"{f.what}: {f.runs} not {f.wanted}" for f in compared if not f.same]

    assert wrong(base) == []
    assert wrong(replace(base, gpus_exact=("GPU-7",))) == ["GPUs: GPU-0 not GPU-7"]
    assert wrong(replace(base, nodes=2, launcher="docker", pool="fast", select={"rack": "b"})) == [
        "nodes: 1 not 2",
        "launcher: exec not docker",
        "pool: default not fast",
        "label rack: a not b",
    ]


def test_agents_are_told_what_profiles_start() -> None:
    """Not of a shell with a script in its words: that is what everybody's session is."""
    assert match.programs(CATALOG) == ("llama-server",)


def test_no_secret_of_a_command_line_is_shown() -> None:
    """An option may take several, and have other names; what they are is not an argument either."""
    runs = ["vllm", "serve", "m", "--api-key", "k1", "k2secret", "--admin-key=zz", "-hf-token", "h"]
    shown = match.hidden(runs)
    assert shown == (*runs[:4], "***", "***", "--admin-key=***", "-hf-token", "***")
    assert match.line(runs[:6]).words == ("serve", "m")
    env = {"AWS_SECRET_ACCESS_KEY": "mine", "HF_TOKEN": "${env.HF_TOKEN}", "MAX_TOKENS": "5"}
    facts = list(match.environment(env, {"AWS_SECRET_ACCESS_KEY": "theirs"}, KNOWN))
    assert facts == [
        Fact("AWS_SECRET_ACCESS_KEY", "***", "***", same=False),
        Fact("HF_TOKEN", "${env.HF_TOKEN}", "unset", same=False),
        Fact("MAX_TOKENS", "5", "unset", same=False),
    ]


def test_a71_what_max_leaves_no_place_for_is_not_offered() -> None:
    """What is on its way out, not kept, or another model's takes no place."""
    model = Model(name="qwen", profiles=(Profile(name="q4"),))
    ours = Replica(
        replica="qwen-1", incarnation="i", model="qwen", profile="q4", have=1, want=1, state="ready"
    )
    others = (
        replace(ours, state="draining"),
        replace(ours, kept=False),
        replace(ours, model="other"),
    )
    assert one_too_many(Plan(replicas=others), model) == ""
    said = one_too_many(Plan(replicas=(*others, ours)), model)
    assert said == "qwen has 1 of max 1 replicas: qwen-1 (ready)"
