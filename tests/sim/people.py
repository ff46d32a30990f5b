"""What people do, by the verbs of `llmgw`: told to the leader at once, or not at all where none is there.

What the operator has asked for is known here too, for the judge: an end that somebody asked for needs no other reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw.core.types import state as s
from llmgw.core.types.messages import StopShard

if TYPE_CHECKING:
    from tests.sim.controls import Control
    from tests.sim.simulation import Simulation


class Operator:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        #: incarnations whose end was confirmed, or asked for
        self.confirmed: set[str] = set()
        self.stopped: set[str] = set()
        #: (node, GPU or "") that were ever drained: a control may start from an inventory that knows of no undrain
        self.drained: set[tuple[str, str]] = set()
        self.verbs: dict[str, Callable[[Control, str], None]] = {
            "pause": self._pause,
            "resume": self._resume,
            "confirm": self._confirm,
            "stop": self._stop,
            "stop-unreadable": self._stop_unreadable,
            "force": self._force,
            "forget": self._forget,
            "clear": self._clear,
            "drain": self._drain,
            "undrain": self._undrain,
            "wake": self._wake,
        }

    def does(self, verb: str, about: str = "") -> None:
        leader = self.sim.leader
        if leader is not None and leader.state is not None and not leader.frozen:
            self.verbs[verb](leader, about)

    def tidies(self) -> None:
        """When things are calm: let go on what is held back, clear what gave up, end what nobody can read (A39)."""
        for verb in ("resume", "confirm", "clear", "stop-unreadable"):
            self.does(verb)
        leader = self.sim.leader
        if leader is not None and leader.state is not None:  # each control has its own inventory
            for node, gpu in sorted(leader.picture.cordoned):
                place = f"{node}/{gpu.removeprefix(f'{node}-gpu')}" if gpu else node
                self.does("undrain", place)

    def _pause(self, control: Control, _: str) -> None:
        control.observe(s.Paused("since noon by an operator"))

    def _resume(self, control: Control, _: str) -> None:
        if control.picture.paused:
            control.observe(s.Paused(""))

    def _confirm(self, control: Control, _: str) -> None:
        """What the last pass held back, or that the world is another than the plan that was required (A49, A56)."""
        if control.picture.withheld:
            self.sim.requires = ""
            control.observe(s.Withheld(""))
        blocked = control.plan.blocked
        if blocked is not None:
            self.sim.say("operator", "confirms", blocked.why)
            self.confirmed |= blocked.incarnations
            control.observe(s.Confirmed(blocked.incarnations))

    def _stop(self, control: Control, replica: str) -> None:
        for node in control.picture.nodes.values():
            for shard in node.shards:
                if shard.report.replica == replica and shard.holds:
                    self.stopped.add(shard.incarnation)
                    self.sim.judge.begun_s.setdefault(shard.incarnation, self.sim.clock.now)
                    why = f"an operator stops {replica}"
                    control.observe(s.DrainBegun(shard.incarnation, "operator", why))

    def _stop_unreadable(self, control: Control, _: str) -> None:
        for node in control.picture.nodes.values():
            for shard in node.shards:
                r = shard.report
                if r.state == "unknown":
                    stop = StopShard(shard=r.shard, incarnation=r.incarnation, reason="operator")
                    self.sim.judge.asked(shard)
                    control.sessions.send(shard.node, stop)

    def _force(self, control: Control, name: str) -> None:
        """What cannot be ended holds nothing any more, by his word; the shard alone, undrained (A43)."""
        for node in control.picture.nodes.values():
            for shard in node.shards:
                r = shard.report
                if r.shard == name and shard.holds:
                    self.stopped.add(shard.incarnation)
                    stop = StopShard(
                        shard=name, incarnation=r.incarnation, reason="operator", force=True
                    )
                    self.sim.judge.asked(shard)
                    control.sessions.send(shard.node, stop)

    def _forget(self, control: Control, name: str) -> None:
        """Refused while it is connected. What it runs is nobody's from here on, until it is back."""
        node = control.picture.nodes.get(name)
        if node is None or node.connected:
            return
        gone = {inc for _, inc in self.sim.agents[name].records}
        # Its journal may be lost just now.
        gone |= {shard.incarnation for shard in node.shards}
        control.heard.incarnations -= gone
        control.heard.expected -= {name}
        control.heard.drained = {place for place in control.heard.drained if place[0] != name}
        control.observe(s.NodeForgotten(name))

    def _wake(self, control: Control, model: str) -> None:
        control.observe(s.Woken(model))

    def _place(self, name: str) -> tuple[str, str]:
        node, _, index = name.partition("/")
        return node, f"{node}-gpu{index}" if index else ""

    def _drain(self, control: Control, name: str) -> None:
        """What is there now, and what is met there later, may be ended for it."""
        self.drained.add(self._place(name))
        control.heard.drained.add(self._place(name))
        control.observe(s.Cordoned(*self._place(name), "since noon by the operator"))

    def _undrain(self, control: Control, name: str) -> None:
        control.heard.drained.discard(self._place(name))
        control.observe(s.Cordoned(*self._place(name), ""))

    def may_leave(self, node: str, gpus: tuple[str, ...]) -> bool:
        return bool(self.drained & {(node, ""), *((node, gpu) for gpu in gpus)})

    def _clear(self, control: Control, model: str) -> None:
        for name in [model] if model else list(control.picture.failures):
            control.observe(s.Cleared(name))
