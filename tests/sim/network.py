"""Messages: lost, late, twice, in another order, or not at all. A call has one answer: the reply, or a failure in time.

A failure says nothing: the request may have been handled (its reply was lost) or may yet be (a late repeat arrives).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.sim.clock import Act, Clock
from tests.sim.dice import Dice
from tests.sim.process import Asleep, Process

TIMEOUT_S = 4.0
Ends = tuple[str, str]


class Unreachable(Exception):  # noqa: N818 - a fact of the network, not an error of ours
    """Nobody listens there: the connection is refused at once."""


class Answer:
    """A reply that its maker owes until it has looked at the whole."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._reply: Callable[[Any], None] = lambda _: None
        self._failed: Act = lambda: None

    def then(self, reply: Callable[[Any], None], failed: Act) -> None:
        self._reply, self._failed = reply, failed

    def give(self) -> None:
        self._reply(self._make())

    def fail(self) -> None:
        """Its maker died: the connection is reset."""
        self._failed()


@dataclass(frozen=True)
class Weather:
    """Odds per message (`replies`: of an answer to be lost besides), and how late one is in seconds at most."""

    lost: float = 0.0
    replies: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    usual_s: float = 0.0
    late_s: float = 8.0


CALM = Weather()


@dataclass
class Network:
    clock: Clock
    dice: Dice
    weather: Weather = CALM
    #: (from, to): nothing comes through that way
    cut: set[Ends] = field(default_factory=set)
    _luck: dict[Ends, Random] = field(default_factory=dict)

    def call(
        self,
        ends: Ends,
        handle: Callable[[], Any],
        reply: Callable[[Any], None],
        failed: Act,
        by: Process | None = None,
    ) -> None:
        """Run `handle` at the other end; exactly one of `reply` and `failed` follows here, in the same life of `by`."""
        call = _Call(self, ends, handle, reply, failed, by, by.life if by is not None else 0)
        if self.weather is CALM and not self.cut:
            self.clock.after(0.0, call.arrive)
            return
        if self.passes(ends):
            self.clock.after(self.delay_s(ends), call.arrive)
            if self.luck(ends).random() < self.weather.repeated:
                self.clock.after(self.luck(ends).uniform(0.0, self.weather.late_s), call.again)
        self.clock.after(TIMEOUT_S, call.give_up)

    def luck(self, ends: Ends) -> Random:
        found = self._luck.get(ends)
        if found is None:
            found = self._luck[ends] = self.dice.stream("line", *ends)
        return found

    def passes(self, ends: Ends, *, back: bool = False) -> bool:
        if ends in self.cut:
            return False
        weather = self.weather
        odds = weather.lost + weather.replies if back else weather.lost
        return odds == 0.0 or self.luck(ends).random() >= odds

    def delay_s(self, ends: Ends) -> float:
        weather = self.weather
        if weather is CALM:
            return 0.0
        if self.luck(ends).random() < weather.late:
            return self.luck(ends).uniform(0.0, weather.late_s)
        return self.luck(ends).uniform(0.0, weather.usual_s)


@dataclass(eq=False, slots=True)
class _Call:
    net: Network
    ends: Ends
    handle: Callable[[], Any]
    reply: Callable[[Any], None]
    failed: Act
    by: Process | None
    life: int
    over: bool = False

    def arrive(self) -> None:
        try:
            said = self.handle()
        except Unreachable:
            self.give_up()
        except Asleep as e:
            e.process.hold(self.arrive)
            self.net.clock.after(TIMEOUT_S, self.give_up)
        else:
            if isinstance(said, Answer):
                said.then(self._back, self.give_up)
                self.net.clock.after(TIMEOUT_S, self.give_up)
            else:
                self._back(said)

    def again(self) -> None:
        """A repeat that a proxy made: handled, and its reply falls on the floor."""
        if self.ends in self.net.cut:
            return
        try:
            self.handle()
        except Unreachable:
            return
        except Asleep as e:
            e.process.hold(self.again)

    def _back(self, said: object) -> None:
        back = (self.ends[1], self.ends[0])
        if self.net.passes(back, back=True):
            self.net.clock.after(self.net.delay_s(back), lambda: self._comes(said))
        else:
            self.net.clock.after(TIMEOUT_S, self.give_up)

    def _comes(self, said: object) -> None:
        self._ends(lambda: self.reply(said))

    def give_up(self) -> None:
        self._ends(self.failed)

    def _ends(self, act: Act) -> None:
        if self.over:
            return
        self.over = True
        by = self.by
        if by is None:
            act()
        elif by.up and by.life == self.life:
            if by.frozen:
                by.hold(act)
            else:
                act()
