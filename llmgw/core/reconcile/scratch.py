"""What one pass knows and makes: the survey by model, what is held, the actions so far. Gone when the pass is over."""

from __future__ import annotations

from llmgw.core.adopt.survey import Survey
from llmgw.core.capacity import Held, holdings
from llmgw.core.place import Placement, counted
from llmgw.core.types.catalog import Model
from llmgw.core.types.plan import Action, Replica, Verdict
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
