"""A process of llmgw: it lives, may be killed or stopped at any named point, and wakes to what came in meanwhile.

It knows nothing of what it does. A stopped one keeps its memory and its sockets: messages wait there (F22, F60).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.sim.clock import Act, Clock

#: A trap at any point at all.
ANY = "any"


class Asleep(Exception):  # noqa: N818 - a fact, not an error of ours
    """The other end is stopped: it takes the message up when it wakes."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process


@dataclass(eq=False)
class Trap:
    """What happens to it at the nth time that it comes to `point`."""

    point: str
    left: int
    act: Callable[[str], None]


class Process:
    def __init__(self, clock: Clock, struck: Counter[str]) -> None:
        self.clock = clock
        #: the points at which something happened to a process
        self.struck = struck
        self.life = 0
        self.up = False
        self.frozen = False
        #: since when it can tell what it sees
        self.awake_s = 0.0
        self._stops = 0
        self._trap: Trap | None = None
        self._backlog: deque[Act] = deque()

    def begins(self) -> None:
        self.life += 1
        self.up, self.frozen, self.awake_s = True, False, self.clock.now
        self._backlog.clear()

    def ends(self) -> None:
        self.up, self.frozen = False, False
        self._backlog.clear()

    # ------------------------------------------------------------ stopped

    def freeze(self, for_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if self.up and not self.frozen:
            self.frozen = True
            self._stops += 1
            mine = self._stops
            self.clock.after(for_s, lambda: self.thaw() if self._stops == mine else None)

    def thaw(self) -> None:
        self.frozen, self.awake_s = False, self.clock.now
        while self._backlog and not self.frozen:
            self._backlog.popleft()()

    def awake(self) -> None:
        if self.frozen:
            raise Asleep(self)

    def hold(self, act: Act) -> None:
        """To be done when it wakes."""
        self._backlog.append(act)

    def later(self, delay_s: float, act: Act) -> None:
        """Something this very life would do then."""
        life = self.life

        def then() -> None:
            if self.life != life or not self.up:
                return
            if self.frozen:
                self.hold(act)
            else:
                act()

        self.clock.after(delay_s, then)

    # ------------------------------------------------------------ points

    def trap(self, point: str, nth: int, within_s: float, act: Callable[[str], None]) -> None:
        """`act` at that point, or after `within_s` where it does not come there."""
        mine = self._trap = Trap(point, nth, act)
        self.clock.after(within_s, lambda: self._springs(mine, ""))

    def disarm(self) -> None:
        self._trap = None

    @property
    def trapped(self) -> bool:
        return self._trap is not None

    def _springs(self, trap: Trap, point: str) -> None:
        if self._trap is trap:
            self._trap = None
            self.struck[point] += bool(point)
            trap.act(point)

    def comes_to(self, point: str) -> bool:
        """Whether it goes on there."""
        trap = self._trap
        if trap is not None and trap.point in (point, ANY):
            trap.left -= 1
            if trap.left <= 0:
                self._springs(trap, point)
        return self.up and not self.frozen

    def go(self, steps: Iterable[str]) -> None:
        """From point to point. Killed, it ends there; stopped, it goes on from there when it wakes."""
        steps = iter(steps)
        for point in steps:
            if not self.comes_to(point):
                if self.up:
                    self.hold(lambda: self.go(steps))
                return
