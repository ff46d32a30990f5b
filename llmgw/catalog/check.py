"""What no single key can tell: keys that do not go together, names that collide."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.catalog import keys
from llmgw.catalog.placeholders import used
from llmgw.catalog.read import Section
from llmgw.catalog.source import Pos, Problems
from llmgw.catalog.units import parse_size
from llmgw.catalog.words import quoted
from llmgw.core import mount

_Problem = Callable[[str, str, str], None]


def check_names(models: dict[str, Section], problems: Problems) -> None:
    """Model names and aliases: one meaning each, whether exact or with a `*`."""
    owners: dict[str, tuple[str, Pos]] = {}
    for name, model in models.items():
        for i, alias in enumerate(model.values.get("aliases", ())):
            at = model.where("aliases", i)
            where = f"models.{name}.aliases: {quoted(alias)}"
            if alias in models:
                whose = (
                    "this model's own name"
                    if alias == name
                    else f"the name of another model, {models[alias].at.text}"
                )
                problems.add(at, f"{where} is {whose}", "take it out")
            elif alias in owners:
                owner, first = owners[alias]
                whose = "here twice" if owner == name else f"also an alias of {owner}, {first.text}"
                problems.add(at, f"{where} is {whose}", "take one of them out")
            else:
                owners[alias] = (name, at)


def check_scaling(
    name: str, scaling: keys.Scaling, layers: list[Section], problems: Problems
) -> None:
    if isinstance(scaling.max, int) and scaling.min > scaling.max:
        at, origin = _innermost(layers, "scaling", ("max", "min"))
        what = f"models.{name}.scaling: min {scaling.min} is more than max {scaling.max}"
        problems.add(at, what + origin, "raise max or lower min")


def check_ready(path: str, ready: keys.Ready, layers: list[Section], problems: Problems) -> None:
    if ready.failures > ready.of:
        at, _ = _innermost(layers, "ready", ("failures", "of"))
        what = f"{path}.ready: {ready.failures} failures of {ready.of} probes cannot happen"
        problems.add(at, what, "lower failures or raise of")


def check_profile(
    profile: keys.Profile, own: Section, engine: Section | None, problems: Problems
) -> None:
    """Keys of one merged profile that do not go together; `own` is what stands in the profile itself."""

    def problem(key: str, what: str, hint: str) -> None:
        problems.add(own.where(key), f"{own.path}: {what}", hint)

    _check_command(profile, own, engine, problem)
    _check_image(profile, own, problem)
    if "gpu_memory" in own.values:
        if parse_size(own.values["gpu_memory"]) == 0:
            problem("gpu_memory", "gpu_memory of nothing", "leave it out for the whole GPU")
        if profile.gpus == 0 and not _broken(own, "gpus"):
            problem(
                "gpu_memory", "gpu_memory, and gpus is 0: it would run on the CPU", "add gpus: 1"
            )
    if profile.gpus_exact and not _broken(own, "gpus") and not _broken(own, "nodes"):
        _check_exact(profile, problem)
    _check_workers(profile, own, problem)
    _check_weights(profile, own, problem)


def _check_exact(profile: keys.Profile, problem: _Problem) -> None:
    """Each card that is named once, and as many as are asked for: fewer would fit nowhere, ever."""
    exact = profile.gpus_exact
    twice = sorted({gpu for gpu in exact if exact.count(gpu) > 1})
    if twice:
        problem("gpus_exact", f"gpus_exact names {twice[0]} twice", "name each GPU once")
    wanted = profile.gpus * profile.nodes
    if not wanted or len(exact) < wanted:
        per = (
            f"{profile.gpus} on each of {profile.nodes} nodes"
            if profile.nodes > 1
            else profile.gpus
        )
        hint = "name as many GPUs as gpus says, or take gpus out"
        count = f"{len(exact)} GPU{'s' * (len(exact) != 1)}"
        problem("gpus_exact", f"gpus_exact names {count}, and gpus is {per}", hint)


def check_sleep(profile: keys.Profile, own: Section, problems: Problems) -> None:
    """Sleep is refused where the engine has no way to it: it would be stopped all the same, and nobody told."""
    if profile.sleep == "off":
        return
    at, said = own.where("sleep"), f"{own.path}: sleep: {profile.sleep}"
    engine = f"engine {profile.engine}" if isinstance(profile.engine, str) else "its command"
    if not isinstance(profile.sleeps, keys.Sleeps):
        what = f"{said}, and {engine} has no way to be put to sleep by order"
        problems.add(at, what, "take it out, or name an engine that has (vllm)")
    elif profile.sleep not in profile.sleeps.levels:
        levels = ", ".join(sorted(profile.sleeps.levels))
        problems.add(at, f"{said}, and {engine} has no such level", f"it has {levels or 'none'}")
    if profile.nodes > 1:
        problems.add(
            at, f"{said}, and nodes is {profile.nodes}", "sleep is for one node: take it out"
        )


def _check_command(
    profile: keys.Profile, own: Section, engine: Section | None, problem: _Problem
) -> None:
    if profile.command or profile.launcher != "exec" or _broken(own, "command"):
        return
    if "command" in own.keys:
        problem("command", "an empty command", "write [program, --flag, value]")
    elif "engine" not in own.keys:
        problem(
            "name",
            "neither engine nor command",
            "name an engine (llama.cpp, vllm, …) or give a command",
        )
    elif engine is not None and not _broken(engine, "command"):
        problem("engine", f"engine {profile.engine} has no command", "give it one, or the profile")


def _check_image(profile: keys.Profile, own: Section, problem: _Problem) -> None:
    if profile.launcher == "exec" and "image" in own.keys and not _broken(own, "launcher"):
        problem("image", "an image, and launcher exec", "take the image out")
    if profile.launcher == "exec" and profile.mounts and not _broken(own, "launcher"):
        problem("mounts", "mounts, and launcher exec: it sees the host as it is", "take them out")
    targets = [found.target for found in map(mount.parse, profile.mounts) if found is not None]
    for target in sorted({t for t in targets if targets.count(t) > 1}):
        problem("mounts", f"{target} is mounted twice", "take one of them out")
    if profile.launcher != "exec" and "image" not in own.keys:
        problem("launcher", f"launcher {profile.launcher} and no image", "add image: …")


def _check_workers(profile: keys.Profile, own: Section, problem: _Problem) -> None:
    if profile.nodes > 1 or _broken(own, "nodes"):
        return
    given = [
        key
        for key in ("worker_command", "worker_args", "leader_args", "start_order")
        if key in own.keys
    ]
    if given:
        problem(
            given[0],
            f"{given[0]}, and nodes is 1: there are no workers",
            "add nodes: 2, or take it out",
        )
    elif profile.worker_command:
        problem("engine", f"engine {profile.engine} has workers, and nodes is 1", "add nodes: 2")


def _check_weights(profile: keys.Profile, own: Section, problem: _Problem) -> None:
    words = (
        *profile.command,
        *profile.args,
        *profile.worker_command,
        *profile.leader_args,
        *profile.worker_args,
    )
    texts = (*words, *profile.env.values())
    if "weights" not in own.keys and any("weights" in used(str(text)) for text in texts):
        problem(
            "engine",
            "the command uses ${weights} and there are none",
            "add weights: /path/to/the/model",
        )


def _broken(own: Section, key: str) -> bool:
    """Given, but unusable: its own problem is told already."""
    return key in own.keys and key not in own.values


def _innermost(layers: list[Section], section: str, names: tuple[str, ...]) -> tuple[Pos, str]:
    """Where the last of `layers` says one of `names` in its `section`, and a word about it when that is not here."""
    found = []
    for depth, layer in enumerate(reversed(layers)):
        inner = layer.values.get(section)
        if isinstance(inner, Section):
            origin = " (by defaults)" if depth else ""
            found += [(inner.keys[name], origin) for name in names if name in inner.keys]
    return found[0]
