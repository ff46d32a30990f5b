"""Carry a plan out, as far as it goes in one pass: what is placed or drained enters the picture, commands come out.

Answers for: the order of the plan, ids that are new at every placement, and orders that are repeated until a report
shows that they were heard (F79). It may not choose: what cannot be sent ends the pass, the next one finds out again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.drain import WILLED
from llmgw.core.place import start_message
from llmgw.core.reconcile.decide import acknowledged
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import Command, DrainShard, ForgetShard, StopShard
from llmgw.core.types.plan import (
    Action,
    DrainReplica,
    NapReplica,
    Plan,
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.sleep import SleepShard, WakeShard
from llmgw.core.types.state import DozeBegun, DrainBegun, Placed, Shard, State, Turned

#: Letters and digits that are not mistaken for each other when read aloud.
_SUFFIX = "23456789abcdefghjkmnpqrstuvwxyz"
_SUFFIX_LENGTH = 4


class Done(Struct, frozen=True):
    """An action that was carried out, with the ids it got."""

    action: Action
    replica: str
    incarnation: str


class Applied(Struct):
    """The picture after the plan, the commands in order, and what of the plan was carried out."""

    state: State
    commands: list[tuple[str, Command]] = []
    done: list[Done] = []


class Performer(Struct):
    """`reachable`: whether a node can be sent a command; `wall` in seconds, for ids that sort by their time."""

    reachable: Callable[[str], bool]
    wall: float

    def apply(self, state: State, plan: Plan, now: float) -> Applied:
        out = Applied(state)
        for action in plan.actions:
            if not isinstance(action, Wait) and action.withheld:
                continue
            done = self._one(out, action, now)
            if done is None:
                break
            out.done.append(done)
        self._repeat(out)
        still = _confirmed(out.state, plan)
        if still != out.state.confirmed:
            out.state = replace(out.state, confirmed=still)
        return out

    def _one(self, out: Applied, action: Action, now: float) -> Done | None:
        """None where it could not be done: what follows presumes it."""
        match action:
            case StartReplica():
                return self._start(out, action, now)
            case RollReplica():
                if action.spots:
                    return self._start(out, action, now)
                self._drain(out, action, "drift", now)
            case DrainReplica():
                self._drain(out, action, action.reason, now)
            case StopReplica():
                self._stop(out, action)
            case NapReplica():
                self._nap(out, action, now)
            case Wait():
                return Done(action, "", "")
            case _:
                assert_never(action)
        return Done(action, action.replica, action.incarnation)

    def _start(self, out: Applied, action: StartReplica | RollReplica, now: float) -> Done | None:
        if not all(self.reachable(s.node) for s in action.spots):
            return None
        replica, incarnation = replica_id(out.state, action.model), uuid7(self.wall)
        model = out.state.catalog.models[action.model]
        placement = (action.profile, action.spots)
        after = action.after if isinstance(action, StartReplica) else ()
        for node, start in start_message(out.state, model, placement, replica, incarnation):
            order = replace(start, after=after) if after else start
            out.state = observe(out.state, Placed(node, order), now)
            out.commands.append((node, order))
        return Done(action, replica, incarnation)

    def _drain(
        self, out: Applied, action: DrainReplica | RollReplica, reason: str, now: float
    ) -> None:
        if isinstance(action, RollReplica) or action.whole:
            begun = DrainBegun(action.incarnation, reason, action.why)
            out.state = observe(out.state, begun, now)
        out.commands += (drain_order(s, reason) for s in action.shards)

    def _nap(self, out: Applied, action: NapReplica, now: float) -> None:
        """An order goes out with the others that are repeated until their agent says that it has them."""
        if action.step in ("doze", "stay"):
            why = action.why if action.step == "doze" else ""
            out.state = observe(out.state, DozeBegun(action.incarnation, why), now)
            return
        to = "asleep" if action.step == "sleep" else "loading"
        for shard in action.shards:
            out.state = observe(out.state, Turned(shard.node, shard.key, to), now)

    def _stop(self, out: Applied, action: StopReplica) -> None:
        """Now; one that is due later is only announced."""
        for shard in action.shards:
            if action.due_s <= 0:
                order = StopShard(
                    shard=shard.report.shard,
                    incarnation=shard.report.incarnation,
                    reason=action.reason,
                )
                out.commands.append((shard.node, order))

    def _repeat(self, out: Applied) -> None:
        """Drains that their agent has not journaled yet, and ended records that nobody waits for any more.

        Not those of an earlier control while this one may do nothing at all (A56); the operator's drains go on.
        """
        remembered = (
            {} if out.state.settling else out.state.draining
        )  # A46: no drain while settling
        if out.state.withheld:
            remembered = {i: d for i, d in remembered.items() if d.reason in WILLED}
        for node in out.state.nodes.values():
            for shard in node.shards:
                drain = remembered.get(shard.incarnation)
                if drain is not None and shard.holds and shard.report.desired == "running":
                    out.commands.append(drain_order(shard, drain.reason))
                if shard.turned:
                    out.commands.append(nap_order(shard))
        for shard in () if out.state.withheld else acknowledged(out.state):
            report = shard.report
            order = ForgetShard(shard=report.shard, incarnation=report.incarnation)
            out.commands.append((shard.node, order))


def _confirmed(state: State, plan: Plan) -> frozenset[str]:
    """A yes to an end lapses with the reason for it (A49).

    Else a catalog that was applied and taken back would leave the whole fleet fair game for the next mistake.
    """
    if state.settling or not state.confirmed:
        return state.confirmed
    ends = {a.incarnation for a in plan.actions if not isinstance(a, StartReplica | Wait)}
    ends |= {
        r.incarnation
        for r in plan.replicas
        if not r.claimed or not r.kept or r.drift or r.have < r.want
    }
    return state.confirmed & (ends | state.draining.keys())


def nap_order(shard: Shard) -> tuple[str, Command]:
    report = shard.report
    if shard.turned == "asleep":
        order: Command = SleepShard(
            shard=report.shard, incarnation=report.incarnation, reason="idle"
        )
    else:
        order = WakeShard(shard=report.shard, incarnation=report.incarnation, reason="wanted")
    return shard.node, order


def drain_order(shard: Shard, reason: str) -> tuple[str, Command]:
    report = shard.report
    return shard.node, DrainShard(shard=report.shard, incarnation=report.incarnation, reason=reason)


def replica_id(state: State, model: str) -> str:
    """The model's name and a short random suffix, for people; taken by no replica that is known."""
    taken = {s.report.replica for node in state.nodes.values() for s in node.shards}
    while True:
        suffix = "".join(_SUFFIX[b % len(_SUFFIX)] for b in os.urandom(_SUFFIX_LENGTH))
        replica = f"{model}-{suffix}"
        if replica not in taken:
            return replica


def uuid7(wall: float) -> str:
    """A key that sorts by the time it was made; `uuid.uuid7` comes with Python 3.14."""
    raw = int(wall * 1000).to_bytes(6, "big") + os.urandom(10)
    bits = int.from_bytes(raw, "big") & ~(0xF << 76) & ~(0x3 << 62) | (0x7 << 76) | (0x2 << 62)
    text = f"{bits:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
