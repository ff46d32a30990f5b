"""What is worth a write: compares the state with what the inventory has, and saves the difference in one commit a pass.

Answers for: persist, then send; and for going on without history when the file cannot be written (F13, F15). It may not
hold anything up for longer than one bounded try, nor decide.
"""

from __future__ import annotations

from collections.abc import Set
from math import inf
from typing import Any

import msgspec
from msgspec.structs import replace

from llmgw.control.crash import crash
from llmgw.control.keys import Keys
from llmgw.control.picture import Change, Moment, believed, gateways_text, picture, unreachable
from llmgw.control.store import Store, StoreError
from llmgw.control.story import Story
from llmgw.core import idle
from llmgw.core.drain import WILLED
from llmgw.core.types.state import Draining, Node, State

#: After a failed write the file is left alone for this long: a locked one would cost every pass its patience.
PAUSE_S = 5.0
#: What agents will say again is written so much later, with all that came until then: a commit is several waits for the
#: disk, and the pass that publishes a route would make a client wait for them (P9).
LATER_S = 0.25


class Keeper:
    """`problem`: why history is not kept right now, for `status`; "" while all is well."""

    def __init__(self, store: Store, story: Story) -> None:
        self.store = store
        self.story = story
        self.problem = ""
        self.sources: dict[str, str] = {}
        self.keys: Keys = {}
        #: when what was left for later is written
        self.due_s = inf
        self._again_s = 0.0
        self._file = 0
        self._forget()

    def _forget(self) -> None:
        """Nothing is known to be in the file, nor that nothing else is."""
        self._instead = self._file > 0
        self._nodes: dict[str, Node] = {}
        self._marks: dict[str, Any] = {}
        self._draining: Any = None
        self._failures: Any = None
        self._sources: Any = None
        self._keys: Any = None
        self._paused: str | None = None
        self._confirmed: frozenset[str] | None = None
        self._cordoned: Any = None
        self._woken: dict[str, float] | None = None
        self._learned: dict[str, int] | None = None
        self._gateways: str | None = None
        self._epoch = 0

    def keep(
        self,
        state: State,
        now: Moment,
        *,
        durable: bool,
        all_of_it: bool = False,
        stops: Set[str] = frozenset(),
    ) -> bool:
        """Save what differs; True when everything of `state` that matters is in the file.

        `durable`: before anything of this pass is sent; `stops`: incarnations to which a stop is sent. What else may
        wait is written at `due_s`, in one commit.
        """
        if now.mono < self._again_s and not all_of_it:
            return False
        try:
            self._open()
            if self._epoch < state.epoch:
                if self.store.epoch() < state.epoch:
                    self.store.write_epoch(state.epoch, state.leader_uuid)
                self._epoch = state.epoch
            change = self._change(state, now, durable=durable, all_of_it=all_of_it, stops=stops)
            if change and not all_of_it and change.may_wait(self._marks):
                self.due_s = min(self.due_s, now.mono + LATER_S)
                if now.mono < self.due_s:
                    return False
            self.due_s = inf
            if change:
                crash("before_keep" if change.sources is None else "before_catalog_kept")
                self.store.save(change, now, instead=self._instead)
                crash("after_keep" if change.sources is None else "after_catalog_kept")
                self._saved(state, change)
        except StoreError as e:
            self._failed(e, now)
            return False
        if self.problem:
            self.story.tell("inventory", f"{self.store.path} is written again")
            self.problem = ""
        return True

    def _open(self) -> None:
        """Whatever became of the file meanwhile: the one there gets all that is known, history included."""
        self.store.open()
        if self._file == self.store.opened:
            return
        self._forget()
        if self._file:
            self.story.unsaved.clear()
            self.story.unsaved.extend(self.story.events)
            if not self.problem:
                what = "was removed, replaced or written to by somebody else"
                why = f"{self.store.path} {what}; what control knows is written anew"
                hint = "to go back to a backup, end control first: while it runs, it writes over it"
                self.story.tell("inventory", why, level="warning", hint=hint)
        self._file = self.store.opened

    def _failed(self, e: StoreError, now: Moment) -> None:
        if not self.problem:
            why = f"the inventory is not written, going on without history: {e.message}"
            self.story.tell("inventory", why, level="warning", hint=e.hint)
        self.problem = f"history is not kept: {e.message}; {e.hint}"
        self._again_s = now.mono + PAUSE_S
        self.due_s = inf

    def _change(
        self, state: State, now: Moment, *, durable: bool, all_of_it: bool, stops: Set[str]
    ) -> Change:
        changed = {
            name: node
            for name, node in state.nodes.items()
            if all_of_it
            or (node is not self._nodes.get(name) and _mark(state, node) != self._marks.get(name))
        }
        paused = None if state.paused == self._paused else state.paused
        confirmed = None if state.confirmed == self._confirmed else state.confirmed
        cordoned = None if state.cordoned == self._cordoned else state.cordoned
        keys = None if self.keys == self._keys else self.keys
        draining = None if _begun(state) == self._draining else state.draining
        begun = {} if draining is None else self._drains(state)
        gateways = gateways_text(idle.gateways(state))
        return Change(
            nodes={name: picture(state, node, now) for name, node in changed.items()},
            gone=tuple(name for name in self._marks if name not in state.nodes),
            draining=draining,
            failures=None if state.failures == self._failures else state.failures,
            sources=None if self.sources == self._sources else self.sources,
            keys=keys,
            paused=paused,
            confirmed=confirmed,
            cordoned=cordoned,
            woken_s=None if state.woken_s == self._woken else state.woken_s,
            learned=None if state.learned == self._learned else state.learned,
            gateways=None if gateways == self._gateways else gateways,
            events=tuple(self.story.unsaved),
            ends=not stops.isdisjoint(begun),
            # An operator who was told that it is done may pull the plug. What control began by itself it would begin
            # again, or its agent says that it drains: no client waits for the disk meanwhile (P9).
            durable=durable
            or any(word is not None for word in (paused, confirmed, cordoned, keys))
            or any(d.reason in WILLED for d in begun.values()),
        )

    def _drains(self, state: State) -> dict[str, Draining]:
        """Those that began since; that one is over, the agents say again: its shard is gone."""
        before = self._draining or {}
        return {i: d for i, d in _begun(state).items() if before.get(i) != d}

    def _saved(self, state: State, change: Change) -> None:
        self._instead = False
        self._nodes = dict(state.nodes)
        self._marks = {
            name: _mark(state, node) if name in change.nodes else self._marks[name]
            for name, node in state.nodes.items()
        }
        self._draining, self._failures = _begun(state), state.failures
        self._sources, self._keys = self.sources, self.keys
        self._paused, self._confirmed = state.paused, state.confirmed
        self._cordoned, self._woken = state.cordoned, state.woken_s
        self._learned = state.learned
        self._gateways = gateways_text(idle.gateways(state))
        self.story.unsaved.clear()


def _begun(state: State) -> dict[str, Draining]:
    """Without the route table that shows it, which no later control takes over."""
    return {i: replace(d, version=0) for i, d in state.draining.items()}


def _mark(state: State, node: Node) -> Any:
    """Equal while nothing changed that a later control would miss; figures that every heartbeat brings are left out."""
    report = believed(node)
    shards = tuple(
        replace(
            s, progress=None, last_request_age_s=None, gpu_peak_bytes=None, host_peak_bytes=None
        )
        for s in report.shards
    )
    gpus = None if report.gpus is None else tuple(g.uuid for g in report.gpus)
    steady = replace(report, shards=shards, gpus=None, foreign=())
    return (msgspec.structs.astuple(steady), gpus, unreachable(state, node))
