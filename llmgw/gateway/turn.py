"""A request's place: on a replica, or in the line for one; and its way from one replica to another.

Answers for: a place that is taken once and given back once, on a replica and of the limit of a key. It may not know
what is sent, nor sockets or the clock.

Laws:
- The place on a replica is taken in `assign` and given back in `_leave_endpoint`, nowhere else.
- What a key's limit counts is given back before the last byte goes out: uvloop writes at once where it can, and the
  client's next request may be in another worker before this one's books are closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from llmgw.gateway import outgoing, problems
from llmgw.gateway.answer import Answer, Client
from llmgw.gateway.balance import Target
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.keys import Use
from llmgw.gateway.openai import Api, ProblemError
from llmgw.gateway.outgoing import Upstream
from llmgw.gateway.queue import share
from llmgw.gateway.state import Gateway
from llmgw.gateway.wait import Wait


class Turn(ABC):
    """What `Exchange` is, as far as it wants a place. All attributes are set there."""

    __slots__ = (
        "_api", "_asked", "_asked_at", "_began", "_client", "_gateway", "_key", "_replica", "_target", "_tried", "_use",
        "_wait", "_waited_s", "_why", "answer", "endpoint", "prefix", "upstream", "who",
    )  # fmt: skip

    _api: Api
    _asked: outgoing.Asked
    _asked_at: float
    _began: float
    _client: Client
    _gateway: Gateway
    _key: str
    _replica: str
    _target: Target
    _tried: tuple[Endpoint, ...]
    _use: Use | None
    _wait: Wait | None
    _waited_s: float
    _why: str
    answer: Answer
    endpoint: Endpoint | None
    prefix: int | None
    upstream: Upstream | None
    who: str

    @abstractmethod
    def _refuse(self, problem: ProblemError) -> None:
        """Ends the request with a no."""

    def _choose(self, now: float) -> None:
        target = self._target
        endpoint = None
        if not target.waiting.size:
            self._asked_at = now
            endpoint = target.choose(now, self._tried, self.prefix)
        if endpoint is None:
            self._queue()
        else:
            self.assign(endpoint)

    def assign(self, endpoint: Endpoint) -> None:
        """A place on `endpoint` is ours from here on."""
        if self._wait is not None:
            self._asked_at = self._gateway.clock()
            self._waited_s = self._asked_at - self._wait.since
        if endpoint.breaker.open:
            endpoint.breaker.let_through(self, self._asked_at)
        endpoint.in_flight += 1
        self.endpoint = endpoint
        self._replica = endpoint.replica
        # What may not be repeated gets a connection of its own: of one that was idle, nobody can tell whether it was
        # closed before the request came.
        self._gateway.connect(endpoint, self, fresh=not self._api.repeats)

    def _leave_endpoint(self, now: float) -> None:
        endpoint, self.endpoint, self.upstream = self.endpoint, None, None
        if endpoint is None:
            return
        if endpoint.breaker.open:
            endpoint.breaker.no_answer(self, now)
        if endpoint.left(now):
            self._gateway.emptied(endpoint)
        if self._target.waiting.size:
            self._gateway.pump(self._target)

    def _queue(self) -> None:
        target, gateway = self._target, self._gateway
        if target.gave_up:
            raise problems.failed(target)
        waiting = target.waiting
        again = self._wait is not None
        if not again:
            use = self._use
            self.who = f"key {use.key.id}" if use is not None else self._client.peer
            held, room = waiting.held(self.who), target.room
            if len(waiting) >= room:
                raise problems.queue_full(target)
            if held >= share(room):
                raise problems.share_used(target, held)
            if not (target.ready or target.resting):
                gateway.meter.model(target.name).wakeups += 1
            self._wait = Wait(target, self._began, gateway.clock())
        self._tried, self._waited_s = (), 0.0
        waiting.add(self, again=again)
        if len(waiting) == 1:
            gateway.changed()

    def _stop_waiting(self) -> None:
        waiting = self._target.waiting
        if self in waiting:
            waiting.remove(self)
            if not waiting:
                self._gateway.changed()

    def tick(self, now: float) -> None:
        """Called each second while waiting: gives up, or tells a streaming client that it still waits."""
        assert self._wait is not None
        problem = self._wait.problem(now)
        if problem is not None:
            self._refuse(problem)
        elif self._asked.stream and (comment := self._wait.comment(now)):
            self.answer.comment(comment)

    def _try_elsewhere(self, why: str) -> None:
        endpoint = self.endpoint
        assert endpoint is not None
        self._failed(endpoint, why)
        self._gateway.meter.count("retries")
        self._tried = (*self._tried, endpoint)
        now = self._gateway.clock()
        self._leave_endpoint(now)
        try:
            self._choose(now)
        except ProblemError as problem:
            self._refuse(problem)

    def _failed(self, endpoint: Endpoint, why: str) -> None:
        self._why = f"{endpoint.replica} {why}"
        if endpoint.breaker.failed(self._why, self._gateway.clock()):
            self._gateway.meter.count("breaker_opened")

    def _full(self, upstream: Upstream, endpoint: Endpoint) -> bool:
        """Nothing was done for it where a replica says 429; whether another one has it now."""
        target, now, tried = self._target, self._gateway.clock(), (*self._tried, endpoint)
        if self._api.raw or target.waiting.size:
            return False
        other = target.choose(now, tried, self.prefix)
        if other is None:
            return False
        upstream.cancel()
        self._gateway.meter.count("retries")
        self._leave_endpoint(now)
        self._tried, self._asked_at = tried, now
        self.assign(other)
        return True

    def _give_back(self) -> None:
        use, self._use = self._use, None
        if use is not None:
            use.end()
            self._key = use.key.id
