"""Read sections to the core's `Catalog`: defaults merged in, units turned into numbers, fingerprints made.

The innermost layer wins: profile, engine (over the built-in one of that name), model, defaults. `env` alone is merged
key by key, and `args` are appended to whichever command won.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import Struct, UnsetType, structs

from llmgw.catalog import check, keys
from llmgw.catalog.engines import built_in
from llmgw.catalog.fingerprint import fingerprint
from llmgw.catalog.read import Section
from llmgw.catalog.source import Problems
from llmgw.catalog.units import parse_duration, parse_size
from llmgw.catalog.words import quoted
from llmgw.core.names import nearest
from llmgw.core.types import catalog as core
from llmgw.core.types.sleep import Doors

S = TypeVar("S", bound=Struct)
T = TypeVar("T")


def build(file: Section, digest: str, problems: Problems) -> core.Catalog:
    """What the file says. Worth something only while `problems` stays empty."""
    defaults = filled(keys.Defaults, [file.values.get("defaults")])
    models: dict[str, Section] = file.values.get("models", {})
    check.check_names(models, problems)
    builder = _Builder(file, problems)
    return core.Catalog(
        models={name: builder.model(name, section) for name, section in models.items()},
        circuits={
            name: one.values.get("power_w", 0.0)
            for name, one in file.values.get("circuits", {}).items()
        },
        stray_grace_s=_seconds(defaults.stray_grace),
        assembly_window_s=_seconds(defaults.assembly_window),
        keep_unknown=defaults.keep_unknown,
        start_limit=defaults.start_limit,
        digest=digest,
    )


def filled(struct: type[S], layers: Iterable[Section | None], **given: Any) -> S:
    """`struct` with the innermost (last) value of every key, its declared default where no layer has it."""
    sections = [layer for layer in layers if layer is not None]
    for field in keys.declared(struct):
        values = [layer.values[field.name] for layer in sections if field.name in layer.values]
        if values and field.name not in given:
            inner = [value for value in values if isinstance(value, Section)]
            given[field.name] = filled(inner[-1].struct, inner) if inner else _plain(values[-1])
    return struct(**given)


def _plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: filled(v.struct, [v]) if isinstance(v, Section) else v for k, v in value.items()}


class _Builder:
    def __init__(self, file: Section, problems: Problems) -> None:
        self.problems = problems
        self.defaults: Section | None = file.values.get("defaults")
        self.engines: dict[str, Section] = file.values.get("engines", {})
        for name, engine in self.engines.items():
            ready = filled(keys.Engine, [built_in().get(name), engine]).ready
            check.check_ready(engine.path, ready, [engine], problems)

    def model(self, name: str, own: Section) -> core.Model:
        layers = [self.defaults, own]
        model = filled(keys.Model, layers, profiles=())
        check.check_scaling(
            name, model.scaling, [layer for layer in layers if layer is not None], self.problems
        )
        return core.Model(
            name=name,
            profiles=tuple(self._profiles(own)),
            aliases=model.aliases,
            kind=model.kind,
            context=_set(model.context, None),
            listed=model.listed,
            scaling=_scaling(model.scaling),
            requests=core.Requests(model.requests.max_in_flight, model.requests.queue),
            wait_timeout_s=_seconds(model.wait_timeout),
            lost_after_s=parse_duration(model.lost_after),
            on_change=model.on_change,
            max_unavailable=model.max_unavailable,
            sticky_prefix_bytes=_prefix(model),
        )

    def _profiles(self, model: Section) -> Iterable[core.Profile]:
        profiles: tuple[Section, ...] = model.values.get("profiles", ())
        if not profiles and model.keys.get("profiles") and "profiles" in model.values:
            self.problems.add(
                model.where("profiles"), f"{model.path}: no profiles", "it needs one: - name: main"
            )
        first: dict[str, Section] = {}
        for own in profiles:
            name = own.values.get("name", "")
            if name and first.setdefault(name, own) is not own:
                at = first[name].where("name").text
                self.problems.add(
                    own.where("name"),
                    f"{own.path}: name {quoted(name)} is taken by {at}",
                    "rename one",
                )
            yield self._profile(model, own, name)

    def _profile(self, model: Section, own: Section, name: str) -> core.Profile:
        engine = own.values.get("engine", "")
        template, override = built_in().get(engine), self.engines.get(engine)
        if engine and template is None and override is None:
            self._unknown_engine(own, engine)
        layers = [self.defaults, model, template, override, own]
        env = _env(template, override, own)
        profile = filled(keys.Profile, layers, name=name, env=env)
        if profile.gpus_exact and "gpus" not in own.keys:
            profile = structs.replace(profile, gpus=len(profile.gpus_exact) // profile.nodes)
        check.check_profile(profile, own, override or template, self.problems)
        check.check_sleep(profile, own, self.problems)
        if "ready" in own.values:
            check.check_ready(own.path, profile.ready, [own], self.problems)
        sleeps = _sleeps(profile)
        env, by_template = _with(env, sleeps), env.keys() - _env(override, own).keys()
        process = _process(profile, engine if template else "", override, own)
        weights = _weights(profile.weights)
        return _core(
            structs.replace(
                profile, env=env, args=(*profile.args, *(sleeps.args if sleeps else ()))
            ),
            engine,
            weights,
            {
                node: fingerprint(process, entry)
                for node, entry in {"default": "", **weights}.items()
            },
            tuple(sorted({*by_template, *(sleeps.env if sleeps else ())})),
            _doors(profile, sleeps, model.values.get("kind", "chat")),
        )

    def _unknown_engine(self, own: Section, engine: str) -> None:
        known = sorted({*built_in(), *self.engines})
        near = nearest(engine, known)
        hint = f'did you mean "{near}"?' if near else f"known: {', '.join(known)}"
        self.problems.add(
            own.where("engine"), f"{own.path}.engine: no engine {quoted(engine)}", hint
        )


def _process(
    profile: keys.Profile, template: str, override: Section | None, own: Section
) -> dict[str, Any]:
    """The canonical parts of the fingerprint: `template` by its name, everything that somebody wrote as written."""
    written = {**(override.values if override else {}), **own.values}
    command = written.get("command", ())
    return {
        "engine": template,
        "command": [*command, *profile.args] if command else [],
        "args": [] if command else list(profile.args),
        "worker_command": list(written.get("worker_command", ())),
        "leader_args": list(profile.leader_args),
        "worker_args": list(profile.worker_args),
        "image": _set(profile.image, ""),
        "mounts": list(profile.mounts),
        "env": _env(override, own),
        "nodes": profile.nodes,
        "gpus": profile.gpus,
        "launcher": profile.launcher,
        "sleep": _sleep_parts(profile, {**(override.values if override else {}), **own.values}),
    }


def _sleeps(profile: keys.Profile) -> keys.Sleeps | None:
    """How it sleeps, if it is to."""
    return None if profile.sleep == "off" else _set(profile.sleeps, None)


def _with(env: dict[str, str], sleeps: keys.Sleeps | None) -> dict[str, str]:
    """What somebody wrote wins over what sleep needs."""
    return {**sleeps.env, **env} if sleeps else env


def _sleep_parts(profile: keys.Profile, written: dict[str, Any]) -> str | list[str]:
    """What of sleep changes the process: a built-in engine's way by a word, as its command by its name."""
    sleeps = _sleeps(profile)
    if sleeps is None or not (sleeps.args or sleeps.env):
        return ""
    return [*sleeps.args, *map(str, sleeps.env.items())] if "sleeps" in written else "on"


def _doors(profile: keys.Profile, sleeps: keys.Sleeps | None, kind: str) -> Doors | None:
    level = sleeps.levels.get(profile.sleep) if sleeps else None
    if sleeps is None or level is None:
        return None
    return Doors(
        level=int(profile.sleep),
        asleep=sleeps.asleep,
        sleep=level.sleep,
        wake=level.wake,
        canary=kind == "chat",
    )


def _core(  # noqa: PLR0917 - the parts of a profile
    profile: keys.Profile,
    engine: str,
    weights: dict[str, str],
    fingerprints: dict[str, str],
    template_env: tuple[str, ...],
    doors: Doors | None,
) -> core.Profile:
    return core.Profile(
        name=profile.name,
        engine=engine,
        launcher=profile.launcher,
        image=_set(profile.image, ""),
        mounts=profile.mounts,
        command=(*profile.command, *profile.args),
        worker_command=profile.worker_command,
        leader_args=profile.leader_args,
        worker_args=profile.worker_args,
        start_order=_set(profile.start_order, ""),
        env=profile.env,
        template_env=template_env,
        weights=weights,
        fingerprints=fingerprints,
        weight=profile.weight,
        nodes=profile.nodes,
        gpus=profile.gpus,
        gpus_exact=profile.gpus_exact,
        gpu_memory_bytes=parse_size(profile.gpu_memory)
        if isinstance(profile.gpu_memory, str)
        else None,
        host_memory_bytes=parse_size(_set(profile.host_memory, "0B")),
        cpu_cores=profile.cpu_cores,
        power_w=profile.power_w,
        pool=profile.pool,
        select=profile.select,
        fabric=_set(profile.fabric, ""),
        health=profile.health,
        compute=_set(profile.compute, ""),
        upstream_key=profile.upstream_key,
        insecure=profile.insecure,
        ready=core.Ready(profile.ready.token, profile.ready.failures, profile.ready.of),
        start_timeout_s=_seconds(profile.start_timeout),
        drain_timeout_s=_seconds(profile.drain_timeout),
        stop=core.Stop(profile.stop.signal, _seconds(profile.stop.grace)),
        restart=core.Restart(
            profile.restart.max, _seconds(profile.restart.window), _seconds(profile.restart.backoff)
        ),
        sleep=doors,
    )


def _scaling(scaling: keys.Scaling) -> core.Scaling:
    return core.Scaling(
        min=scaling.min,
        max=_set(scaling.max, max(scaling.min, 1)),
        idle_timeout_s=parse_duration(scaling.idle_timeout),
        min_up_s=_seconds(scaling.min_up),
        yield_after_s=_seconds(scaling.yield_after),
        priority=scaling.priority,
        cost=_set(scaling.cost, None),
    )


def _env(*layers: Section | None) -> dict[str, str]:
    return {
        key: value
        for layer in layers
        if layer
        for key, value in layer.values.get("env", {}).items()
    }


def _weights(weights: str | dict[str, str] | UnsetType) -> dict[str, str]:
    if isinstance(weights, str):
        return {"default": weights}
    return _set(weights, {})


def _set(value: T | UnsetType, default: T) -> T:
    return default if isinstance(value, UnsetType) else value


def _prefix(model: keys.Model) -> int | None:
    return None if isinstance(model.sticky, UnsetType) else parse_size(model.sticky.prefix)


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    assert seconds is not None, "the reader takes `never` only where there is a never"
    return seconds
