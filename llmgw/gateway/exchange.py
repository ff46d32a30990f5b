"""One request's life: admitted, given a replica or made to wait for one, sent, relayed, ended; and what goes wrong.

Answers for: who may ask, the wait while a model loads, repeating only what is safe to repeat, never a silent cut. It
may not know sockets or the clock: a client, an engine's connection and the time are passed in.

Laws:
- The place on a replica is taken in `assign` and given back in `_leave_endpoint`, nowhere else; every way out passes
  `_close_books`, which calls it.
- Nothing is repeated once a byte of the answer has arrived, or a byte of it has been sent.
- A stream that we opened (200 and comments) ends with an event: an error event where there is no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from llmgw.core.types.routes import RouteKey
from llmgw.gateway import answer, local, openai, problems
from llmgw.gateway.answer import Answer, Client
from llmgw.gateway.balance import LOADING, Endpoint, Target
from llmgw.gateway.http1 import Request
from llmgw.gateway.keys import allowed
from llmgw.gateway.openai import ProblemError
from llmgw.gateway.reply import ReplyReader
from llmgw.gateway.state import Gateway

#: A waiting stream is opened after the first figure, so that a fast wake can still answer with its own status.
FIRST_COMMENT_S, COMMENT_S = 1.0, 10.0
#: How long a request waits for replicas that the table calls ready and that cannot be reached: long enough for an
#: engine restarted in its place and for control to say otherwise, short enough for a client that can go elsewhere.
PATIENCE_S = 20.0
#: A request that two engines died of is not given to a third.
DEATHS_MAX = 2
#: How much of an engine's refusal is read when only an error event can carry it.
REFUSAL_BYTES = 64 * 1024
OK, CLIENT_LEFT, UNAVAILABLE = 200, 499, 503
NOBODY = Target("")


class Upstream(Protocol):
    """A connection to an engine."""

    reused: bool
    told: bool
    reader: ReplyReader

    def send(self, sink: Exchange, head: bytes, body: bytes, *, plain: bool) -> None: ...

    def cancel(self) -> None: ...

    def release(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Exchange:
    """What stands here is how each begins; most requests change little of it."""

    endpoint: Endpoint | None = None
    upstream: Upstream | None = None
    _api: openai.Api | None = None
    _key: RouteKey | None = None
    _target = NOBODY
    _asked = ""
    _stream = False
    _over = False
    _collected: bytearray | None = None
    _tried: tuple[Endpoint, ...] = ()
    _deaths = 0
    _waiting_since: float | None = None
    _refused_since: float | None = None
    _comment_at = 0.0
    _waited_s = 0.0
    _first_s = 0.0
    _replica = ""
    _why = ""

    def __init__(self, gateway: Gateway, client: Client, request: Request) -> None:
        self._gateway = gateway
        self._client = client
        self._request = request
        self._began = gateway.clock()
        request_id = gateway.request_id(request.own.get(b"x-request-id"))
        self.answer = Answer(client, request, request_id, keep_alive=not gateway.stopping)

    def begin(self) -> None:
        request = self._request
        self._api = openai.APIS.get(request.path)
        try:
            if self._api is None or request.method != b"POST":
                reply = local.respond(self._gateway, request, loopback=self._client.loopback)
                self.answer.whole(*reply)
                self._finish("ok", keep_alive=True)
                return
            self._admit(self._api)
            self._choose()
        except ProblemError as problem:
            self._refuse(problem)

    def _admit(self, api: openai.Api) -> None:
        gateway = self._gateway
        key = None
        if not gateway.keys.open:
            key = self._key = gateway.keys.check(self._request.own)
        if gateway.fleet.table is None:
            raise problems.no_route_table()
        asked = openai.asked(self._request.body)
        target = gateway.fleet.targets.get(asked.model) or gateway.resolve(asked.model)
        if target is None:
            visible = [n for n in gateway.names.exact if allowed(key, n)]
            raise gateway.names.unknown(asked.model, visible)
        if key is not None and not allowed(key, target.name):
            raise problems.not_allowed(target)
        self._target = target
        self._asked = asked.model
        self._stream = asked.stream is True and api.streams

    # -- a replica, or the wait for one

    def _choose(self) -> None:
        target = self._target
        endpoint = None
        if not target.waiting:
            endpoint = target.choose(self._gateway.clock(), self._tried)
        if endpoint is None:
            self._wait()
        else:
            self.assign(endpoint)

    def assign(self, endpoint: Endpoint) -> None:
        """A place on `endpoint` is ours from here on."""
        if self._waiting_since is not None:
            self._waited_s = self._gateway.clock() - self._waiting_since
        endpoint.in_flight += 1
        self.endpoint = endpoint
        self._replica = endpoint.replica
        self._gateway.connect(endpoint, self)

    def _leave_endpoint(self) -> None:
        endpoint, self.endpoint, self.upstream = self.endpoint, None, None
        if endpoint is None:
            return
        if endpoint.left(self._gateway.clock()):
            self._gateway.emptied(endpoint)
        if self._target.waiting:
            self._gateway.pump(self._target)

    def _wait(self) -> None:
        target = self._target
        if target.gave_up:
            raise problems.failed(target)
        if self._waiting_since is None:
            if len(target.waiting) >= target.room:
                raise problems.queue_full(target)
            self._waiting_since = self._gateway.clock()
            self._comment_at = self._waiting_since + FIRST_COMMENT_S
        self._tried = ()
        target.waiting[self] = None
        if len(target.waiting) == 1:
            self._gateway.changed()

    def _stop_waiting(self) -> None:
        waiting = self._target.waiting
        if self in waiting:
            del waiting[self]
            if not waiting:
                self._gateway.changed()

    def tick(self, now: float) -> None:
        """Called each second while waiting: gives up, or tells a streaming client that it still waits."""
        target = self._target
        problem = self._hopeless(now)
        if problem is not None:
            self._refuse(problem)
        elif self._stream and now >= self._comment_at:
            self._comment_at = now + COMMENT_S
            if not self.answer.opened:
                self.answer.open_stream()
            stage, progress = self._stage(), target.route.progress
            percent = f" {progress:.0%}" if progress is not None and stage == LOADING else ""
            text = f": llmgw {stage} {target.name}{percent} {now - self._began:.0f}s\n\n"
            self.answer.emit(text.encode())

    def _hopeless(self, now: float) -> ProblemError | None:
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

    def _stage(self) -> str:
        """`loading` from the first request on, whatever control does about it just now."""
        if not self._target.ready:
            return LOADING
        return "reconnecting" if self._target.failing else "queued"

    # -- an engine; its connection calls these

    def connected(self, upstream: Upstream) -> None:
        endpoint, request = self.endpoint, self._request
        if self._over or endpoint is None:
            upstream.release()
            return
        self.upstream = upstream
        body = request.body
        if endpoint.upstream_model and endpoint.upstream_model != self._asked:
            body = openai.renamed(body, endpoint.upstream_model)
        head = (
            b"POST %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\nx-request-id: %b\r\n%b\r\n"
            % (
                request.target,
                endpoint.authority,
                b"".join(request.forward),
                len(body),
                self.answer.request_id,
                endpoint.authorization,
            )
        )
        upstream.send(self, head, body, plain=self.answer.opened or request.http10)
        if self._client.paused:
            upstream.pause()

    def unreachable(self, why: str) -> None:
        """No connection was made, so nothing was sent and anybody else may have the request."""
        if not self._over:
            self._try_elsewhere(why)

    def _try_elsewhere(self, why: str) -> None:
        endpoint = self.endpoint
        assert endpoint is not None
        self._failed(endpoint, why)
        self._gateway.meter.count("retries")
        self._tried = (*self._tried, endpoint)
        self._leave_endpoint()
        try:
            self._choose()
        except ProblemError as problem:
            self._refuse(problem)

    def _failed(self, endpoint: Endpoint, why: str) -> None:
        self._why = f"{endpoint.replica} {why}"
        endpoint.failed(self._why, self._gateway.clock())

    def answered(self, upstream: Upstream, first: bytes) -> Callable[[bytes], None] | None:
        """The head of the answer is here, and `first` of its body; gives where the rest of it goes."""
        endpoint, reader = self.endpoint, upstream.reader
        assert endpoint is not None
        if reader.status == UNAVAILABLE:
            # llama-server says so while it loads, also when it was restarted in its place; and a quick no must not
            # draw traffic. Another replica may do better, and this one too in a moment.
            upstream.cancel()
            self._try_elsewhere("answers 503")
            return None
        if endpoint.fails:
            endpoint.worked()
        self._free_body()
        if self._gateway.stopping:
            self.answer.keep_alive = False
        if not self.answer.opened:
            self._first_s = self._gateway.clock() - self._began
            self.answer.relay(reader, endpoint.name, first)
            return self.answer.write
        # In the stream that we opened only events can go on; anything else is kept, to be told by one.
        if reader.status == OK and answer.is_stream(reader):
            rest = self.answer.emit
        else:
            self._collected = bytearray()
            rest = self._collect
        rest(first)
        return rest

    def _collect(self, data: bytes) -> None:
        assert self._collected is not None
        self._collected += data[: REFUSAL_BYTES - len(self._collected)]

    def ended(self, upstream: Upstream) -> None:
        """The answer is whole."""
        if self._collected is not None:
            refused = problems.engine_refused(
                self._target, upstream.reader.status, bytes(self._collected)
            )
            self._end_with(refused)
            return
        if self.answer.opened:
            self.answer.end_stream()
        self._finish("ok", keep_alive=upstream.reader.tidy)

    def lost(self, upstream: Upstream, why: str) -> None:
        """The connection is gone before the end of the answer."""
        endpoint, reader = self.endpoint, upstream.reader
        assert endpoint is not None
        if upstream.told:
            self._broken(endpoint, reader, why)
        elif upstream.reused and not reader.any:
            # Closed while idle, most likely just as we took it: the engine has not seen the request.
            self._gateway.meter.count("retries")
            self.upstream = None
            self._gateway.connect(endpoint, self, fresh=True)
        else:
            self._deaths += 1
            if self._deaths < DEATHS_MAX and not reader.any:
                self._try_elsewhere(why)
            else:
                self._failed(endpoint, why)
                self._refuse(problems.engine_failed(self._target, endpoint.replica, why))

    # -- out

    def left(self) -> None:
        """The client is gone: so is its request, at once, also while the engine is still silent."""
        if self._over:
            return
        self._gateway.meter.count("clients_left")
        if self.upstream is not None:
            self.upstream.cancel()
        self._stop_waiting()
        self.answer.status = self.answer.status or CLIENT_LEFT
        self._close_books("client_left")

    def _broken(self, endpoint: Endpoint, reader: ReplyReader, why: str) -> None:
        """The engine broke off inside its answer: an event where the stream takes one, else a cut that shows."""
        self._failed(endpoint, why)
        self._gateway.meter.count("broken")
        if self.answer.opened or self.answer.takes_event(reader):
            self._end_with(problems.engine_failed(self._target, endpoint.replica, why))
            return
        self._close_books("broken")
        self._client.abort()

    def _end_with(self, problem: ProblemError) -> None:
        """Ends a stream that has begun with an error event."""
        self._why = self._why or problem.message
        self.answer.emit(
            openai.error_event(problem, self._dialect, self.answer.request_id.decode())
        )
        self.answer.end_stream()
        self._finish("broken", keep_alive=False)

    def _refuse(self, problem: ProblemError) -> None:
        """Ends the request with a no."""
        self._stop_waiting()
        self._why = problem.message
        if self.answer.opened:
            self._end_with(problem)
            return
        retry = problem.retry_after_s
        headers = openai.JSON if retry is None else b"%bretry-after: %d\r\n" % (openai.JSON, retry)
        body = openai.error_body(problem, self._dialect, self.answer.request_id.decode())
        self.answer.whole(problem.status, headers + problem.headers, body)
        self._finish("refused", keep_alive=True)

    @property
    def _dialect(self) -> str:
        return self._api.dialect if self._api is not None else openai.OPENAI

    def _finish(self, end: str, *, keep_alive: bool) -> None:
        self._close_books(end)
        self._client.finished(keep_alive=keep_alive and self.answer.keep_alive)

    def _free_body(self) -> None:
        """The body is held for a repetition, and no longer."""
        request = self._request
        if request.body:
            self._gateway.budget.used -= len(request.body)
            request.body = b""

    def _close_books(self, end: str) -> None:
        """Every way out comes by here, once."""
        assert not self._over
        self._over = True
        self._free_body()
        self._leave_endpoint()
        gateway, out = self._gateway, self.answer
        seconds = gateway.clock() - self._began
        gateway.meter.request(self._target.name, out.status, seconds, self._first_s, out.sent)
        if gateway.access is not None:
            gateway.access.request(
                self._request,
                out,
                model=self._target.name,
                replica=self._replica,
                key=self._key.id if self._key is not None else "",
                seconds=seconds,
                first_s=self._first_s,
                waited_s=self._waited_s,
                end=end,
                why=self._why,
            )
