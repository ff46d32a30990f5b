"""Idle replicas that sleep instead of being stopped, and sleepers that are woken instead of a new one being started.

To sleep: out of the routes, then, once no request can reach it any more, the order (A65). To wake: only where its
memory is free again, and it holds all of it from that moment on; else a new one is started, and the sleeper goes.
May not say who is idle or how many are wanted: that is `decide`'s.
"""

from __future__ import annotations

from math import inf
from typing import Literal

from llmgw.core import cordon, drain, idle
from llmgw.core.asleep import awake_again, not_to_be_woken, sleeps, stuck, words
from llmgw.core.reconcile.ends import drained, stoppable
from llmgw.core.reconcile.scratch import Pass
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import NapReplica, Replica, Wait


def dozes(p: Pass, model: Model, r: Replica, why: str) -> bool:
    """Whether the idle replica sleeps instead of being drained; its next step is among the actions, if one is due."""
    profile = model.profile(r.profile)
    assert profile is not None
    # It may have been started without, or by an older agent.
    if profile.sleep is None or r.drift or not all(s.report.sleep for s in r.members):
        return False
    if cordon.leaves(p.state, r.members):
        return False  # nothing of it may stay there, asleep or not
    p.dozing.add(r.incarnation)
    begun = p.state.dozing.get(r.incarnation)
    if begun is None:
        p.actions.append(_step("doze", r, f"{why}; it goes to sleep"))
    elif said := drain.finished(p.state, r, begun, inf, p.now):
        p.actions.append(_step("sleep", r, f"{why}; {said}"))
    return True


def makes_room(p: Pass, asks: Model, r: Replica, why: str) -> bool:
    """Whether one that goes for another model does so by falling asleep: it is quicker back that way.

    Not where the other needs a GPU alone, nor while anybody may be on it: a drain has a limit, this has none. Where
    what it gives back is not enough it goes after all, as a sleeper that serves nobody.
    """
    if r.incarnation in p.dozing:
        return True  # for somebody before it: whether that is enough is seen then
    whole = any(f.gpus and not f.gpu_memory_bytes for f in asks.profiles)
    if whole or not r.complete_and_ready or idle.busy(p.state, r, p.now):
        return False
    return dozes(p, p.state.catalog.models[r.model], r, why)


def stays(p: Pass, model: Model) -> None:
    """Those that were to sleep and are not idle any more, nor in anybody's way, are routed again."""
    for r in p.staying(model) if p.state.dozing else ():
        if r.incarnation in p.state.dozing:
            p.actions.append(_step("stay", r, "it is wanted again"))


def wakes(p: Pass, model: Model, why: str) -> NapReplica | Wait | None:
    """A sleeper to wake, or to wait for while it falls asleep; None: there is none, or none can wake where it lies."""
    asleep = p.asleep.get(model.name, [])
    for r in asleep:
        if r.incarnation in p.leaving():
            continue  # for another model, before it was this one's turn
        if not all(map(sleeps, r.members)):
            said = f"{r.replica} is {words(r.members[0])}"
            return Wait(model=model.name, profile=r.profile, why=f"{why}; {said}")
        if not stuck(p.state, model, r) and not not_to_be_woken(p.state, p.held, r):
            p.asleep[model.name] = [other for other in asleep if other is not r]
            p.waking.add(r.incarnation)
            (shard,) = r.members
            p.fleet.hold(shard.node, awake_again(p.state, p.held, shard))
            return _step("wake", r, f"{why}; it sleeps on {shard.node}")
    return None


def replaced(p: Pass, model: Model, why: str) -> None:
    """A new one was started for want of one that could wake: a sleeper goes for it, as it would be one too many."""
    left = p.asleep.get(model.name, [])
    if left:
        r, *p.asleep[model.name] = left
        if r.incarnation in p.leaving():
            return  # for another model, before it was this one's turn
        no = stuck(p.state, model, r) or not_to_be_woken(p.state, p.held, r)
        gone = f"asleep, and cannot wake where it lies: {no}; {why}"
        p.actions.append(drained(r, stoppable(r.members), "idle", gone, asleep=True))


def leave(p: Pass, model: Model) -> None:
    """Sleepers on what an operator drained."""
    for r in p.asleep.get(model.name, []):
        why = cordon.leaves(p.state, r.members)
        if why and r.incarnation not in p.leaving():
            p.actions.append(drained(r, stoppable(r.members), "operator", why))


def _step(step: Literal["doze", "stay", "sleep", "wake"], r: Replica, why: str) -> NapReplica:
    return NapReplica(
        replica=r.replica,
        incarnation=r.incarnation,
        model=r.model,
        profile=r.profile,
        shards=r.members,
        step=step,
        why=why,
    )
