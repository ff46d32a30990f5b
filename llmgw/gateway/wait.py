"""How long a request waits for a replica, and what its client is told meanwhile.

Answers for: bounded waits, each with the reason that ended it. It may not know sockets; `now` is an argument.
"""

from __future__ import annotations

from llmgw.gateway import problems
from llmgw.gateway.balance import LOADING, Target
from llmgw.gateway.openai import ProblemError

#: A waiting stream is opened after the first figure, so that a fast wake can still answer with its own status.
FIRST_COMMENT_S, COMMENT_S = 1.0, 10.0
#: How long a request waits for replicas that the table calls ready and that cannot be reached: long enough for an
#: engine restarted in its place and for control to say otherwise, short enough for a client that can go elsewhere.
PATIENCE_S = 20.0


class Wait:
    """One request's, made when it first has to; it may get a place, lose it and wait on. `began`: the request's."""

    __slots__ = ("_began", "_comment_at", "_refused_since", "_target", "since")

    def __init__(self, target: Target, began: float, now: float) -> None:
        self._target = target
        self._began = began
        self.since = now
        self._comment_at = now + FIRST_COMMENT_S
        self._refused_since: float | None = None

    def problem(self, now: float) -> ProblemError | None:
        """Why it is hopeless by now, if it is."""
        target, waited_s = self._target, now - self._began
        if target.gave_up:
            return problems.failed(target)
        failing = target.failing
        if not failing:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since >= PATIENCE_S:
            return problems.unreachable(target, failing, waited_s)
        if waited_s >= target.route.wait_timeout_s:
            return problems.waited_too_long(target, self._stage(), waited_s, now)
        return None

    def comment(self, now: float) -> bytes:
        """What a stream is to be told now, if anything."""
        if now < self._comment_at:
            return b""
        self._comment_at = now + COMMENT_S
        target = self._target
        stage, progress = self._stage(), target.route.progress
        percent = f" {progress:.0%}" if progress is not None and stage == LOADING else ""
        return f": llmgw {stage} {target.name}{percent} {now - self._began:.0f}s\n\n".encode()

    def _stage(self) -> str:
        """`loading` from the first request on, whatever control does about it just now."""
        if not self._target.ready:
            return "reconnecting" if self._target.unsure else LOADING
        return "reconnecting" if self._target.failing else "queued"
