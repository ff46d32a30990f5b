"""A pass in words: what was found and what is done about it, each when it changes (style.md 3).

Answers for: which finding is worth a line. It may not decide, nor word a reason: `why` comes from the core.
"""

from __future__ import annotations

import re

from llmgw.control.apply import Done
from llmgw.control.story import Story
from llmgw.core.adopt.survey import Survey
from llmgw.core.types.messages import Refusal
from llmgw.core.types.plan import (
    DrainReplica,
    NapReplica,
    Plan,
    RollReplica,
    StartReplica,
    StopReplica,
    Verdict,
    Wait,
)
from llmgw.wire.plan import blocked_digest

#: `keep` and `terminal` are no news, `hold` is while it is not just settling; `forget` has a line of its own.
_TOLD = frozenset({"adopt", "join", "replace", "stray", "unclaimed", "conflict", "hold"})
_WARNED = frozenset({"stray", "unclaimed", "conflict"})
#: Who it is that starts just now is no news to those that wait for it: of ten models on one box each would say so ten
#: times, and twice each time, first of what is placed and then of its name.
_STARTING = re.compile(r"(?:(?<=: )|^)[^:;]+? (?:is|are) still starting")


class Teller:
    def __init__(self, story: Story) -> None:
        self._story = story
        self._blocked = ""

    def found(self, found: Survey) -> None:
        for v in found.verdicts:
            if v.verdict in _TOLD and v.reason != "settling":
                self._verdict(v)
        for r in found.replicas:
            if r.held:
                continue  # its node is silent: that is told, what its engines do nobody knows
            # A32: one line says replica, model, have, want, state; of a failure also why, in the engine's last words
            failed = r.state == "failed"
            ours = (
                v.shard.report
                for v in found.verdicts
                if failed and v.shard.incarnation == r.incarnation
            )
            errors = dict.fromkeys(report.error for report in ours if report.error)
            self._story.once(
                ("replica", r.incarnation),
                "replica",
                "; ".join([f"{r.replica} is {r.state}, {r.have} of {r.want} shards", *errors]),
                level="warning" if failed else "info",
                exact=True,
                replica=r.replica,
                model=r.model,
                incarnation=r.incarnation,
                state=r.state,
            )
        for warning in found.warnings:
            self._story.once(("warning", warning), "warning", warning, level="warning")

    def _verdict(self, v: Verdict) -> None:
        report = v.shard.report
        self._story.once(
            ("verdict", v.shard.node, v.shard.key),
            v.verdict,
            v.why,
            level="warning" if v.verdict in _WARNED else "info",
            shard=report.shard,
            node=v.shard.node,
            incarnation=report.incarnation,
            model=v.model,
            reason=v.reason,
        )

    def forgotten(self, v: Verdict) -> None:
        """A39: one warning a shard, naming node and shard, however many passes it stays in the picture."""
        self._story.once(
            ("forget", v.shard.node, v.shard.key),
            "forget",
            f"{v.shard.report.shard} on {v.shard.node}: {v.why}",
            level="warning",
            shard=v.shard.report.shard,
            node=v.shard.node,
            incarnation=v.shard.report.incarnation,
            reason=v.reason,
        )

    def refused(self, node: str, refusal: Refusal) -> None:
        self._story.tell(
            "refused",
            f"{node} refused: {refusal.why or refusal.reason}",
            level="warning",
            node=node,
            shard=refusal.shard,
            incarnation=refusal.incarnation,
            reason=refusal.reason,
        )

    def plan(self, plan: Plan, done: list[Done]) -> None:
        """What was done; what is wanted and has to wait; what is announced (A48); what is held back (A49)."""
        self._held_back(plan)
        for one in done:
            self._done(one)
        for action in plan.actions:
            if isinstance(action, Wait):
                key = ("wait", action.model)
                news = _STARTING.sub("another is still starting", action.why)
                self._story.once(key, "wait", action.why, news=news, model=action.model)
            elif isinstance(action, StopReplica) and action.due_s > 0:
                self._story.once(
                    ("stop", action.incarnation, "due"),
                    "stop",
                    f"will be stopped: {action.why}",
                    level="warning",
                    replica=action.replica,
                    reason=action.reason,
                    due=self._story.at(action.due_s),
                )

    def _held_back(self, plan: Plan) -> None:
        """Once when it begins and whenever it is about other engines, and once when it is over."""
        blocked = plan.blocked
        digest = "" if blocked is None else blocked_digest(blocked)
        if digest == self._blocked:
            return
        self._blocked = digest
        if blocked is None:
            self._story.tell("released", "nothing is blocked any more")
            return
        why = f"{blocked.why}; llmgw confirm {digest} lets it happen"
        self._story.tell("blocked", why, level="warning", digest=digest)

    def _done(self, done: Done) -> None:
        action = done.action
        ids = {"model": action.model, "profile": action.profile, "incarnation": done.incarnation}
        match action:
            case StartReplica() | RollReplica() if action.spots:
                kind = "start" if isinstance(action, StartReplica) else "roll"
                node = action.spots[0].node
                self._story.tell(kind, action.why, replica=done.replica, node=node, **ids)
            case StopReplica() if action.due_s <= 0:
                self._order("stop", action, ids)
            case DrainReplica():
                self._order("drain", action, ids)
            case NapReplica() if action.step in ("sleep", "wake"):
                node = action.shards[0].node
                self._story.tell(action.step, action.why, replica=action.replica, node=node, **ids)
            case RollReplica():
                self._order("roll", action, ids)
            case _:
                pass

    def _order(
        self, kind: str, action: StopReplica | DrainReplica | RollReplica, ids: dict[str, str]
    ) -> None:
        """Repeated until it is heard, told once."""
        nodes = ",".join(sorted({s.node for s in action.shards}))
        self._story.once(
            (kind, action.incarnation, nodes),
            kind,
            action.why,
            replica=action.replica,
            node=nodes,
            reason="drift" if isinstance(action, RollReplica) else action.reason,
            model=ids["model"],
            profile=ids["profile"],
            incarnation=ids["incarnation"],
        )
