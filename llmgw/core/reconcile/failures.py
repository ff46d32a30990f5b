"""How often a model failed, as agents tell it: kept so that a loop ends visibly (A67). May not judge what follows."""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.types.state import Failure, Shard, State

#: Failures of a model kept for people, beside those that count towards giving it up.
FAILURES_KEPT = 5


def _one_of(told: list[Failure]) -> Failure:
    """Of several ranks, or told again: what gave up says most, else it must not matter who spoke first (A10)."""
    said = min(told, key=lambda f: (not f.gave_up, f.error, f.fingerprint, f.profile))
    return replace(said, at_s=min(f.at_s for f in told))


def gave_out(state: State, incarnation: str, why: str, now: float) -> State:
    """A replica that lives and is given up counts as a failure of its model like one that died (F64, A67)."""
    shards = [s for n in state.nodes.values() for s in n.shards if s.incarnation == incarnation]
    return counted(
        state,
        tuple(
            replace(s, report=replace(s.report, state="failed", error=why, gave_up=False))
            for s in shards
        ),
        now,
    )


def absent(state: State, shard: Shard, why: str, now: float) -> State:
    """A file that it would load is not there: nobody is to make room there meanwhile. The last one of a profile."""
    report = shard.report
    model = state.catalog.resolve(report.model)
    if model is None:
        return state
    fingerprint = report.fingerprint
    others = _without_absent(
        state.failures.get(model.name, ()), frozenset({(fingerprint, shard.node)})
    )
    failure = Failure(
        shard.incarnation, report.profile, now, why, fingerprint=fingerprint, absent=shard.node
    )
    return replace(state, failures=state.failures | {model.name: (*others, failure)})


def _without_absent(
    seen: tuple[Failure, ...], found: frozenset[tuple[str, str]]
) -> tuple[Failure, ...]:
    return tuple(f for f in seen if not (f.absent and (f.fingerprint, f.absent) in found))


def _found(state: State, shards: tuple[Shard, ...]) -> State:
    """Their agents have taken them: the files are there, which says nothing of other nodes."""
    if not any(f.absent for seen in state.failures.values() for f in seen):
        return state
    found = frozenset((s.report.fingerprint, s.node) for s in shards if s.holds)
    left = {m: _without_absent(seen, found) for m, seen in state.failures.items()}
    return replace(state, failures={m: seen for m, seen in left.items() if seen})


def counted(state: State, shards: tuple[Shard, ...], now: float) -> State:
    """Count each failed incarnation once, under its canonical model (A67): given up already while it is torn down."""
    state = _found(state, shards)
    ended = [s for s in shards if s.report.state == "failed" or s.report.gave_up]
    ended = [s for s in ended if not s.report.never_ran]
    if not ended:
        return state
    failures = dict(state.failures)
    for shard in ended:
        report = shard.report
        model = state.catalog.resolve(report.model)
        if model is None:
            continue
        seen = failures.get(model.name, ())
        error = report.error or "failed"
        failure = Failure(
            shard.incarnation, report.profile, now, error, report.gave_up, report.fingerprint
        )
        failure = _one_of([failure, *(f for f in seen if f.incarnation == shard.incarnation)])
        if failure in seen:
            continue
        seen = tuple(f for f in seen if f.incarnation != shard.incarnation)
        keep = max((p.restart.max for p in model.profiles), default=0) + FAILURES_KEPT
        by_time = sorted((*seen, failure), key=lambda f: (f.at_s, f.incarnation))  # A10
        failures[model.name] = tuple(by_time[-keep:])
    return replace(state, failures=failures)
