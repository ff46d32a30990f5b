"""Look at the whole and say what to do: verdicts, replicas, an ordered list of actions, each with `why`.

Level-triggered: nothing is remembered of what was asked before; what is under way shows in the facts. Nothing is
started or
disturbed while settling (A46). The same function serves the loop and the dry run (A52); no flag reaches it.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core import drain, failed, idle, roll
from llmgw.core.adopt.survey import Survey, survey
from llmgw.core.capacity import Held, holdings
from llmgw.core.place import NoRoom, Placement, counted, place
from llmgw.core.reconcile.guard import guarded
from llmgw.core.reconcile.settle import waiting_for
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import STARTING, TERMINAL
from llmgw.core.types.plan import (
    Action,
    DrainReplica,
    NodeView,
    Plan,
    Replica,
    RollReplica,
    StartReplica,
    StopReplica,
    Verdict,
    Wait,
)
from llmgw.core.types.state import PLACED, Draining, Node, Shard, State


class Pass:
    """Scratch of one pass: the survey by model, and what is held, grown by each start that was decided.

    What is held is counted when somebody first asks: most passes place nothing.
    """

    def __init__(self, state: State, now: float, found: Survey) -> None:
        self.state = state
        self.now = now
        self.survey = found
        self.actions: list[Action] = []
        self.kept: dict[str, list[Replica]] = {}
        for r in found.replicas:
            if r.kept and not r.going:
                self.kept.setdefault(r.model, []).append(r)
        #: what has ended of each incarnation, as far as its records are there
        self.over: dict[str, list[Shard]] = {}
        for v in found.verdicts:
            if v.verdict in ("terminal", "forget"):
                self.over.setdefault(v.shard.incarnation, []).append(v.shard)
        self._held: dict[str, Held] | None = None
        self._verdicts: dict[tuple[str, str, int], Verdict] | None = None

    @property
    def held(self) -> dict[str, Held]:
        if self._held is None:
            self._held = holdings(self.state)
        return self._held

    def counted(self, model: Model, placement: Placement) -> None:
        self._held = counted(self.held, model, placement)

    def verdict(self, shard: Shard) -> Verdict:
        if self._verdicts is None:
            self._verdicts = {(v.shard.node, *v.shard.key): v for v in self.survey.verdicts}
        return self._verdicts[shard.node, *shard.key]


def decide(state: State, now: float, found: Survey | None = None) -> Plan:
    """The plan of this moment. `found` spares a second survey where the caller has one of this very state."""
    found = found or survey(state)
    p = Pass(state, now, found)
    if not state.settling:
        _end(p)
        _all_models(p)
    actions, blocked = guarded(state, found, p.actions)
    return Plan(
        nodes=_nodes(state),
        verdicts=found.verdicts,
        replicas=found.replicas,
        actions=actions,
        blocked=blocked,
        settling_for=waiting_for(state, now) if state.settling else (),
        warnings=found.warnings,
        epoch_seen=max((n.report.epoch_seen for n in state.nodes.values()), default=0),
    )


def _nodes(state: State) -> tuple[NodeView, ...]:
    return tuple(
        NodeView(
            node=name,
            answered=node.connected,
            shards=len(node.shards),
            error=_unheard(node),
        )
        for name, node in sorted(state.nodes.items())
    )


def _unheard(node: Node) -> str | None:
    if node.connected:
        return None
    return "no answer" if node.report.reattached else "still re-attaching its engines"


def _end(p: Pass) -> None:
    """What must go: drained ones, losers, unclaimed ones, what stayed short, second shards of a rank."""
    for r in p.survey.replicas:
        if r.kept and r.have >= r.want and r.state != "draining" and not p.state.ending:
            continue  # nearly all of them, nearly always
        members = _stoppable(r.members)
        if not members:
            continue
        drain_ = p.state.draining.get(r.incarnation)
        if drain_ is not None or r.state == "draining":
            _finish(p, r, members, drain_)
        elif p.state.ending:
            p.actions.append(
                _drain(r, members, "ending", "the operator asked for all engines to end")
            )
        elif not r.claimed:
            _unclaimed(p, r, members)
        elif not r.kept:
            _loser(p, r, members)
        elif r.have < r.want and not r.held:
            _incomplete(p, r, members)
    _second_shards(p)


def _stoppable(shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
    """Those an order would still change: running, or placed and not yet heard of."""
    return tuple(
        s for s in shards if s.report.desired != "stopped" and s.report.state != "stopping"
    )


def _finish(p: Pass, r: Replica, members: tuple[Shard, ...], begun: Draining | None) -> None:
    """The end of a drain, also of one that only the agent's journal remembers (A65); until then it goes on."""
    since = begun or Draining(
        p.state.settled_s or 0.0, "draining", "was draining before", p.state.first_version
    )
    why = drain.finished(p.state, r, since, _drain_timeout_s(p, r), p.now)
    if why:
        p.actions.append(_stop(r, members, since.reason, f"{since.why}; {why}", 0.0, drained=True))


def _drain_timeout_s(p: Pass, r: Replica) -> float:
    model = p.state.catalog.models.get(r.model)
    profile = model.profile(r.profile) if model else None
    return profile.drain_timeout_s if profile else 120.0


def _seen_since_s(p: Pass, shards: tuple[Shard, ...]) -> float:
    """From when a window of theirs counts: the first was seen, and settling was over."""
    return max(min(s.seen_s for s in shards), p.state.settled_s or 0.0)


def _unclaimed(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """Nothing will ever claim it: stopped after a grace in which an operator can see it coming (A48)."""
    if p.state.keep_unknown or p.state.catalog.keep_unknown:
        return
    since = max(_seen_since_s(p, members), p.state.catalog_s)
    due_s = since + p.state.catalog.stray_grace_s - p.now
    verdict = p.verdict(members[0])
    reason = verdict.reason or "model_removed"
    if due_s <= 0 and any(s.was_live for s in members):
        p.actions.append(_drain(r, members, reason, verdict.why))
        return
    p.actions.append(_stop(r, members, reason, verdict.why, max(due_s, 0.0)))


def _loser(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """Drained, not killed, and only once the kept one is routable (A38). One that never came up is stopped then.

    What we placed and no agent has yet must not come up beside the one that runs (A36): it is stopped at once.
    """
    verdict = p.verdict(members[0])
    reason = verdict.reason or "duplicate_replica"
    if all(s.origin == PLACED for s in members):
        p.actions.append(_stop(r, members, reason, verdict.why, 0.0))
    elif any(k.incarnation == r.rival and k.complete_and_ready for k in p.survey.replicas):
        if any(_may_serve(s) for s in members):
            p.actions.append(_drain(r, members, reason, verdict.why))
        else:
            p.actions.append(_stop(r, members, reason, verdict.why, 0.0))


def _may_serve(shard: Shard) -> bool:
    """It came up, or its agent has only just found it again and cannot tell yet (F43)."""
    return shard.was_live or shard.report.state == "starting"


def _incomplete(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """A group that lacks a rank: broken for good, or not all heard yet."""
    ranks = {s.rank for s in members}  # a second shard of a rank that has one is no loss
    ended = [s for s in p.over.get(r.incarnation, ()) if s.rank < r.want and s.rank not in ranks]
    if ended:
        _broken(p, r, members, ended[0])
    else:
        _short(p, r, members)


def _broken(p: Pass, r: Replica, members: tuple[Shard, ...], gone: Shard) -> None:
    """A group of which one has ended is one world that is over (F77): the rest goes at once, to start anew together.

    Not while another member still starts: slow peers must not set off restart storms (A34, F78); how often in all, the
    failures of the model say.
    """
    if any(s.report.state in STARTING for s in members):
        return
    said = "the agent does not run it" if gone.missing else gone.report.error or "it has ended"
    why = f"rank {gone.rank} on {gone.node} is gone ({said}); the group restarts together"
    p.actions.append(_stop(r, members, "not_running", why, 0.0))


def _short(p: Pass, r: Replica, members: tuple[Shard, ...]) -> None:
    """Short after the assembly window: its remaining shards are stopped, to be replaced elsewhere (A33)."""
    due_s = _seen_since_s(p, members) + p.state.catalog.assembly_window_s - p.now
    why = f"{r.have} of {r.want} shards; the others have not come within the assembly window"
    p.actions.append(_stop(r, members, "short_after_window", why, max(due_s, 0.0)))


def _second_shards(p: Pass) -> None:
    """A second shard of a rank is nobody's endpoint: drained once the one that counts is up, then stopped.

    What it still serves cannot be told from the other's requests (one replica id), so it gets the whole time.
    """
    seconds = [v for v in p.survey.verdicts if v.reason == "duplicate_rank"]
    rows = {r.incarnation: r for r in p.survey.replicas} if seconds else {}
    for v in seconds:
        if v.verdict != "stray" or not _stoppable((v.shard,)):
            continue
        r = rows[v.shard.incarnation]
        if v.shard.report.desired == "running":
            part = _drain(r, (v.shard,), "duplicate_rank", v.why)
            p.actions.append(replace(part, whole=False))
            continue
        due_s = max(_seen_since_s(p, (v.shard,)) + _drain_timeout_s(p, r) - p.now, 0.0)
        p.actions.append(_stop(r, (v.shard,), "duplicate_rank", v.why, due_s, drained=True))


def _stop(
    r: Replica,
    members: tuple[Shard, ...],
    reason: str,
    why: str,
    due_s: float,
    *,
    drained: bool = False,
) -> StopReplica:
    return StopReplica(
        replica=r.replica,
        incarnation=r.incarnation,
        model=r.model,
        profile=r.profile,
        shards=members,
        reason=reason,
        why=why,
        due_s=due_s,
        disturbs=not drained and any(s.was_live for s in members),
        drained=drained,
    )


def _drain(
    r: Replica, members: tuple[Shard, ...], reason: str, why: str, *, asleep: bool = False
) -> DrainReplica:
    return DrainReplica(
        replica=r.replica,
        incarnation=r.incarnation,
        model=r.model,
        profile=r.profile,
        shards=members,
        reason=reason,
        why=why,
        idle=asleep,
        disturbs=not asleep,
    )


def _all_models(p: Pass) -> None:
    """Starts of all models first, the most important one first; then rolls and sleeps of what runs."""
    if p.state.ending:
        return
    models = sorted(p.state.catalog.models.values(), key=lambda m: (-m.scaling.priority, m.name))
    for model in models:
        _start(p, model)
    for model in models:
        _roll(p, model)
        _sleep(p, model)


def _start(p: Pass, model: Model) -> None:
    """Start what is wanted and not there. A held, assembling or pending replica is there (A46, F61)."""
    kept = p.kept.get(model.name, [])
    wanted = model.scaling.min
    if not kept and not wanted and idle.demanded(p.state, model):
        wanted = 1
    reason = (
        f"min {model.scaling.min}"
        if model.scaling.min
        else f"{idle.waiting(p.state, model.name)} waiting"
    )
    for n in range(len(kept), wanted):
        why = _not_yet(p, model)
        if not why:
            answer = place(p.state, p.held, model)
            if not isinstance(answer, NoRoom):
                p.counted(model, answer)
                p.actions.append(
                    StartReplica(
                        model=model.name,
                        profile=answer.profile,
                        spots=answer.spots,
                        why=f"{reason}, {n} running; {answer.why}",
                    )
                )
                continue
            why = answer.why
        p.actions.append(
            Wait(
                model=model.name,
                profile=model.profiles[0].name,
                why=f"{reason}, {n} running; {why}",
            )
        )
        return


def _not_yet(p: Pass, model: Model) -> str:
    """Why no start of the model may be tried now: given up, or backing off (A67)."""
    said = failed.gave_up(p.state, model)
    if said:
        return f"failed ({said}); llmgw clear {model.name} lets it start again"
    return failed.backing_off(p.state, model, p.now)


def _roll(p: Pass, model: Model) -> None:
    kept = p.kept.get(model.name, [])
    if not any(r.drift for r in kept):
        return
    old = roll.surplus(p.state, model, kept)
    if old is not None:
        why = f"{old.drift}; its replacement is ready"
        p.actions.append(_drain(old, _stoppable(old.members), "drift", why))
        return
    step = roll.step(p.state, p.held, model, kept)
    if step is None:
        return
    p.actions.append(step)
    if isinstance(step, RollReplica):
        p.counted(model, Placement(step.profile, step.spots, step.why))


def _sleep(p: Pass, model: Model) -> None:
    """An on-demand replica beyond `min` that nobody has used for its timeout goes to sleep (A63)."""
    timeout_s = model.scaling.idle_timeout_s
    if timeout_s is None or p.now < p.state.wanted_s.get(model.name, 0.0) + timeout_s:
        return
    kept = [r for r in p.kept.get(model.name, []) if not r.held and r.complete_and_ready]
    leaving = {a.incarnation for a in p.actions if isinstance(a, DrainReplica | RollReplica)}
    kept = [r for r in kept if r.incarnation not in leaving]
    kept.sort(key=lambda r: (idle.idle_since_s(p.state, r), r.incarnation))
    for r in kept[: max(len(kept) - model.scaling.min, 0)]:
        until = idle.idle_until_s(p.state, model, r)
        if until is None or p.now < until or idle.busy(p.state, r, p.now):
            continue
        since = p.now - idle.idle_since_s(p.state, r)
        why = f"idle for {since:.0f} s, idle_timeout is {model.scaling.idle_timeout_s:g} s"
        p.actions.append(_drain(r, _stoppable(r.members), "idle", why, asleep=True))


def acknowledged(state: State) -> tuple[Shard, ...]:
    """Ended shards whose record the agent may delete: their end is in our picture, or an operator cleared it.

    Of a group's only shard of a rank not before the others have ended: it is the fact that ends them (A34).
    """
    over = [
        s
        for node in state.nodes.values()
        if node.usable
        for s in node.shards
        if s.report.state in TERMINAL and not s.missing
    ]
    if not over:
        return ()
    recorded = {f.incarnation for failures in state.failures.values() for f in failures}
    alive: dict[str, set[int]] = {}
    for node in state.nodes.values():
        for s in node.shards:
            if s.holds:
                alive.setdefault(s.incarnation, set()).add(s.rank)
    return tuple(
        s
        for s in over
        if s.rank in alive.get(s.incarnation, {s.rank})
        and not (s.report.gave_up and s.incarnation in recorded)
    )
