"""A network that is late, loses, repeats and reorders. A call has one answer: the reply, or a failure after a time.

A failure says nothing: the request may have been handled (its reply was lost) or may yet be (a late repeat arrives).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.sim.clock import Clock

TIMEOUT_S = 4.0


class Unreachable(Exception):  # noqa: N818 - a fact of the network, not an error of ours
    """Nobody listens there: the connection is refused at once."""


@dataclass(frozen=True)
class Weather:
    """Odds per message, and how late one is in seconds at most."""

    lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    usual_s: float = 0.0
    late_s: float = 8.0


CALM = Weather()


@dataclass
class Network:
    clock: Clock
    rng: Random
    weather: Weather = CALM
    #: pairs that cannot talk now
    cut: set[frozenset[str]] = field(default_factory=set)

    def call(
        self,
        ends: tuple[str, str],
        handle: Callable[[], Any],
        reply: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        """Run `handle` at the other end; exactly one of `reply` and `failed` follows here."""
        if self.weather is CALM and not self.cut:
            self._arrive(ends, handle, reply, failed, [])
            return
        answered: list[bool] = []
        if self._passes(ends):
            self._arrive(ends, handle, reply, failed, answered, delay_s=self._delay_s())
            if self.rng.random() < self.weather.repeated:
                self.clock.after(
                    self.rng.uniform(0.0, self.weather.late_s), lambda: self._again(ends, handle)
                )
        self.clock.after(TIMEOUT_S, lambda: self._give_up(answered, failed))

    def _arrive(
        self,
        ends: tuple[str, str],
        handle: Callable[[], Any],
        reply: Callable[[Any], None],
        failed: Callable[[], None],
        answered: list[bool],
        *,
        delay_s: float = 0.0,
    ) -> None:
        def there() -> None:
            try:
                said = handle()
            except Unreachable:
                self._give_up(answered, failed)
                return
            if self._passes(ends):
                back = self._delay_s()
                self.clock.after(back, lambda: self._come_back(answered, reply, said))

        self.clock.after(delay_s, there)

    def _again(self, ends: tuple[str, str], handle: Callable[[], Any]) -> None:
        """A repeat that a proxy made: handled, and its reply falls on the floor."""
        if frozenset(ends) not in self.cut:
            try:
                handle()
            except Unreachable:
                return

    def _come_back(self, answered: list[bool], reply: Callable[[Any], None], said: object) -> None:
        if not answered:
            answered.append(True)
            reply(said)

    def _give_up(self, answered: list[bool], failed: Callable[[], None]) -> None:
        if not answered:
            answered.append(True)
            failed()

    def _passes(self, ends: tuple[str, str]) -> bool:
        if frozenset(ends) in self.cut:
            return False
        return self.weather.lost == 0.0 or self.rng.random() >= self.weather.lost

    def _delay_s(self) -> float:
        if self.rng.random() < self.weather.late:
            return self.rng.uniform(0.0, self.weather.late_s)
        return self.rng.uniform(0.0, self.weather.usual_s)
