"""How often a model failed, as agents tell it: kept so that a loop ends visibly (A67). May not judge what follows."""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.failed import no_program
from llmgw.core.types.catalog import Model
from llmgw.core.types.state import REFUSAL_HOLD_S, Failure, Refused, Shard, State

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
    """What it would load or run is not there: nobody is to make room there meanwhile. The last one of a profile."""
    report = shard.report
    model = state.catalog.resolve(report.model)
    if model is None:
        return state
    seen = state.failures.get(model.name, ())
    failure = Failure(
        shard.incarnation,
        report.profile,
        now,
        why,
        fingerprint=report.fingerprint,
        absent=shard.node,
    )
    found = frozenset({(report.fingerprint, shard.node)})
    return _with(state, model, (*_without_absent(seen, found), failure))


def _lacking(state: State, shard: Shard, now: float) -> State:
    """Its agent could not even start it, and no repeat there helps: asked for again after a while, as what is refused.

    At once where another node has it: the best place would else be the same one each time.
    """
    report, why = shard.report, shard.report.error or ""
    model = state.catalog.resolve(report.model)
    if model is None or report.fingerprint not in _today(model):
        return state
    known = state.failures.get(model.name, ())
    if any(f.incarnation == shard.incarnation and f.absent == shard.node for f in known):
        return state
    refused = Refused(shard.node, f"profile {report.fingerprint}", now + REFUSAL_HOLD_S, why)
    return absent(replace(state, refused=(*state.refused, refused)), shard, why, now)


def _today(model: Model) -> frozenset[str]:
    return frozenset(f for p in model.profiles for f in p.fingerprints.values())


def _with(state: State, model: Model, failures: tuple[Failure, ...]) -> State:
    """Those that still say something, in one order whoever told first (A10).

    Of what is absent: by today's profiles, one a node. Of the rest the last ones, and apart from them those that gave
    up: a give-up ends by nobody's failure after it (A67).
    """
    today = _today(model)
    keep = max((p.restart.max for p in model.profiles), default=0) + FAILURES_KEPT
    kept: list[Failure] = [f for f in failures if f.absent and f.fingerprint in today]
    by_time = sorted(failures, key=_when)
    for gave_up in (False, True):
        kept += [f for f in by_time if not f.absent and f.gave_up is gave_up][-keep:]
    return replace(state, failures=state.failures | {model.name: tuple(sorted(kept, key=_when))})


def _when(failure: Failure) -> tuple[float, str, str]:
    return failure.at_s, failure.incarnation, failure.absent


def _without_absent(
    seen: tuple[Failure, ...], found: frozenset[tuple[str, str]]
) -> tuple[Failure, ...]:
    return tuple(f for f in seen if not (f.absent and (f.fingerprint, f.absent) in found))


def _found(state: State, shards: tuple[Shard, ...]) -> State:
    """Their agents have started them: all that it takes is there, which says nothing of other nodes."""
    if not any(f.absent for seen in state.failures.values() for f in seen):
        return state
    up = (s for s in shards if s.holds and s.report.state not in ("pending", "stopping"))
    found = frozenset((s.report.fingerprint, s.node) for s in up)
    left = {m: _without_absent(seen, found) for m, seen in state.failures.items()}
    return replace(state, failures={m: seen for m, seen in left.items() if seen})


def counted(state: State, shards: tuple[Shard, ...], now: float) -> State:
    """Count each failed incarnation once, under its canonical model (A67): given up already while it is torn down."""
    state = _found(state, shards)
    for shard in shards:
        report = shard.report
        if report.never_ran or not (report.state == "failed" or report.gave_up):
            continue
        if not (shard.was_live or report.gave_up) and no_program(report.error or ""):
            state = _lacking(state, shard, now)
        else:
            state = _counted(state, shard, now)
    return state


def _counted(state: State, shard: Shard, now: float) -> State:
    report = shard.report
    model = state.catalog.resolve(report.model)
    if model is None:
        return state
    seen = state.failures.get(model.name, ())
    error = report.error or "failed"
    failure = Failure(
        shard.incarnation, report.profile, now, error, report.gave_up, report.fingerprint
    )
    same = [f for f in seen if f.incarnation == shard.incarnation and not f.absent]
    failure = _one_of([failure, *same])
    if failure in seen:
        return state
    return _with(state, model, (*(f for f in seen if f not in same), failure))
