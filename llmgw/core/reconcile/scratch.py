"""What one pass knows and makes: the survey by model, what is held, the actions so far. Gone when the pass is over."""

from __future__ import annotations

from llmgw.core.adopt.survey import Survey
from llmgw.core.asleep import asleep
from llmgw.core.capacity import Held, holdings
from llmgw.core.place import Fleet, NoRoom, Placement, take
from llmgw.core.reconcile.starts import Starts
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import (
    Action,
    DrainReplica,
    Replica,
    RollReplica,
    StopReplica,
    Verdict,
)
from llmgw.core.types.state import Shard, State


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
        #: the kept ones that sleep are apart: they serve nobody
        self.asleep: dict[str, list[Replica]] = {}
        #: incarnations on their way to sleep, by what this pass says
        self.dozing: set[str] = set()
        #: and on their way out of it
        self.waking: set[str] = set()
        #: how many models are rolled, or will be once other starts are over
        self.rolls = 0
        for r in found.replicas:
            # One that counts as lost is there again once its node is; until then nothing counts on it (F61).
            if r.kept and not r.going and not (r.held and r.incarnation in state.lost):
                of = self.asleep if asleep(r) else self.kept
                of.setdefault(r.model, []).append(r)
        #: what has ended of each incarnation, as far as its records are there
        self.over: dict[str, list[Shard]] = {}
        for v in found.verdicts:
            if v.verdict in ("terminal", "forget"):
                self.over.setdefault(v.shard.incarnation, []).append(v.shard)
        #: how many actions were looked at; what they end, with and without what is only announced
        self._looked = 0
        self._announced: set[str] = set()
        self._leaving: set[str] = set()
        self._fleet: Fleet | None = None
        self._starts: Starts | None = None
        self._verdicts: dict[tuple[str, str, int], Verdict] | None = None

    @property
    def fleet(self) -> Fleet:
        if self._fleet is None:
            self._fleet = Fleet(self.state, holdings(self.state))
        return self._fleet

    @property
    def held(self) -> dict[str, Held]:
        return self.fleet.held

    @property
    def starts(self) -> Starts:
        if self._starts is None:
            self._starts = Starts(self.fleet, self.actions)
        return self._starts

    def leaving(self, *, announced: bool = False) -> set[str]:
        """What this pass ends already: nothing more is decided about it. `announced`: also what has a grace left."""
        for a in self.actions[self._looked :]:
            if isinstance(a, DrainReplica | RollReplica | StopReplica):
                self._announced.add(a.incarnation)
                if not (isinstance(a, StopReplica) and a.due_s):
                    self._leaving.add(a.incarnation)
        self._looked = len(self.actions)
        return self._announced if announced else self._leaving

    def staying(self, model: Model) -> list[Replica]:
        """The model's kept ones without those, and without what falls asleep."""
        leaving, dozing = self.leaving(), self.dozing
        return [
            r
            for r in self.kept.get(model.name, ())
            if r.incarnation not in leaving and r.incarnation not in dozing
        ]

    def ending(self, model: Model) -> dict[str, str]:
        """The incarnations of the model that this pass ends, and where."""
        leaving = self.leaving()
        if not leaving:
            return {}
        rows = (r for r in self.survey.replicas if r.model == model.name and r.members)
        rows = (r for r in rows if r.incarnation in leaving)
        return {r.incarnation: f"{r.replica} on {r.members[0].node}" for r in rows}

    def place(self, model: Model) -> Placement | NoRoom:
        return self.starts.place(model)

    def counted(self, model: Model, placement: Placement) -> None:
        take(self.fleet, model, placement)

    def verdict(self, shard: Shard) -> Verdict:
        if self._verdicts is None:
            self._verdicts = {(v.shard.node, *v.shard.key): v for v in self.survey.verdicts}
        return self._verdicts[shard.node, *shard.key]
