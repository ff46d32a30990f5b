"""What the file comes to: layers, defaults, units."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.core.types.catalog import Catalog, Profile, Ready, Requests, Restart, Scaling, Stop

Load = Callable[[str], Catalog]

LAYERED = """\
version: 1
defaults:
  scaling: {idle_timeout: never, min_up: 1m}
  requests: {queue: 7}
  start_timeout: 1m
  drain_timeout: 1m
  stop: {signal: INT, grace: 1s}
  restart: {max: 1}
  wait_timeout: 9m
  on_change: keep
  stray_grace: 5s
  assembly_window: 6s
  keep_unknown: true
  start_limit: 3
circuits: {office: {power_w: 1500}, lab: {power_w: 99.5}}
engines:
  mine:
    command: [mine, "${port}"]
    env: {A: engine, B: engine}
    health: /engine
    ready: {failures: 1}
    compute: llama.cpp
    upstream_key: true
models:
  q:
    aliases: [r, "s-*"]
    kind: embed
    context: 4096
    listed: false
    scaling: {min: 2, min_up: 3m}
    requests: {max_in_flight: 9}
    sticky: {prefix: 2KiB}
    drain_timeout: 2m
    stop: {grace: 2s}
    restart: {max: 2, window: 2m}
    wait_timeout: 8m
    profiles:
      - name: main
        engine: mine
        args: [-x]
        env: {B: profile, C: profile}
        ready: {of: 9}
        stop: {signal: QUIT}
        restart: {window: 3m}
        weight: 5
        gpus: 2
        gpu_memory: 1.5GiB
        host_memory: 1GB
        cpu_cores: 2
        power_w: 50
        weights: {default: /a, box2: /b}
      - name: own
        engine: mine
        command: [other]
        health: /own
        upstream_key: false
"""


def test_the_innermost_wins(loaded: Load) -> None:
    catalog = loaded(LAYERED)
    model = catalog.models["q"]
    assert model.scaling == Scaling(min=2, max=2, idle_timeout_s=None, min_up_s=180.0)
    assert model.requests == Requests(max_in_flight=9, queue=7)
    assert model.sticky_prefix_bytes == 2048
    assert (model.wait_timeout_s, model.on_change, model.kind, model.context, model.listed) == (
        480,
        "keep",
        "embed",
        4096,
        False,
    )
    assert model.aliases == ("r", "s-*")
    main = model.profiles[0]
    assert main.command == ("mine", "${port}", "-x")
    assert main.env == {"A": "engine", "B": "profile", "C": "profile"}
    assert main.stop == Stop("QUIT", 2.0)
    assert main.restart == Restart(max=2, window_s=180.0)
    assert main.ready == Ready(failures=1, of=9)
    assert (main.start_timeout_s, main.drain_timeout_s) == (60.0, 120.0)
    assert (main.health, main.compute, main.upstream_key) == ("/engine", "llama.cpp", True)
    assert (main.gpu_memory_bytes, main.host_memory_bytes, main.cpu_cores) == (3 << 29, 10**9, 2.0)
    assert (main.weight, main.gpus, main.power_w) == (5, 2, 50.0)
    assert (main.weights_on("box1"), main.weights_on("box2")) == ("/a", "/b")
    assert main.fingerprint_on("box1") != main.fingerprint_on("box2")
    own = model.profiles[1]
    assert (own.command, own.health, own.upstream_key) == (("other",), "/own", False)
    assert own.env == {"A": "engine", "B": "engine"}
    assert (
        catalog.stray_grace_s,
        catalog.assembly_window_s,
        catalog.keep_unknown,
        catalog.start_limit,
    ) == (5, 6, True, 3)
    assert catalog.circuits == {"office": 1500.0, "lab": 99.5}


def test_a_built_in_engine_may_be_overridden_key_by_key(profile: Callable[..., Profile]) -> None:
    got = profile(
        "engine: llama.cpp\nweights: /m",
        rest="engines: {llama.cpp: {command: [/opt/llama-server, -m, '${weights}'], env: {X: 1}}}\n",
    )
    assert got.command == ("/opt/llama-server", "-m", "${weights}")
    assert (got.env["LLAMA_API_KEY"], got.env["X"]) == ("${api_key}", "1")
    assert "LLAMA_API_KEY" in got.template_env
    assert "X" not in got.template_env
    assert (got.health, got.upstream_key, got.engine) == ("/health", True, "llama.cpp")


def test_max_is_min_or_one(loaded: Load) -> None:
    for scaling, want in (
        ("{}", (0, 1)),
        ("{min: 3}", (3, 3)),
        ("{max: 2}", (0, 2)),
        ("{min: 1, max: 2}", (1, 2)),
    ):
        model = loaded(
            f"version: 1\nmodels: {{q: {{scaling: {scaling}, profiles: [{{name: p, command: [x]}}]}}}}\n"
        ).models["q"]
        assert (model.scaling.min, model.scaling.max) == want


def test_an_image_and_what_is_appended_to_its_entrypoint(loaded: Load) -> None:
    profile = (
        loaded(
            "version: 1\nmodels: {q: {profiles: [{name: p, launcher: docker, image: a/b:1, args: [-x]}]}}"
        )
        .models["q"]
        .profiles[0]
    )
    assert (profile.launcher, profile.image, profile.command) == ("docker", "a/b:1", ("-x",))


def test_an_empty_catalog_is_one(loaded: Load) -> None:
    catalog = loaded("version: 1\n")
    assert catalog.models == {}
    assert len(catalog.digest) == 64
    assert catalog.digest != loaded("version: 1\nmodels: {}\n").digest


def test_models_and_profiles_keep_their_order(loaded: Load) -> None:
    names = ["z", "a", "m"]
    profiles = "profiles: [{name: y, command: [x]}, {name: b, command: [x]}]"
    catalog = loaded(
        "version: 1\nmodels:\n" + "".join(f"  {name}: {{{profiles}}}\n" for name in names)
    )
    assert list(catalog.models) == names
    assert [profile.name for profile in catalog.models["z"].profiles] == ["y", "b"]


def test_gpus_exact_says_how_many_where_gpus_does_not(profile: Callable[..., Profile]) -> None:
    two = profile("command: [x]\ngpus_exact: [box1:0, GPU-7]")
    assert (two.gpus, two.gpus_exact) == (2, ("box1:0", "GPU-7"))
    assert profile("command: [x]\nnodes: 2\ngpus_exact: [box1:0, box2:0]").gpus == 1
    either = profile("command: [x]\ngpus: 1\ngpus_exact: [box1:0, box2:0]")
    assert (either.gpus, len(either.gpus_exact)) == (1, 2)
    assert profile("command: [x]\ngpus_exact: [box1:0]").fingerprints == (
        profile("command: [x]\ngpus: 1").fingerprints
    )
