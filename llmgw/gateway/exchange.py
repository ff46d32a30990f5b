"""One request's life: admitted, given a replica or made to wait for one, sent, relayed, ended; and what goes wrong.

Answers for: who may ask, the wait while a model loads, repeating only what is safe to repeat, never a silent cut. It
may not know sockets or the clock: a client, an engine's connection and the time are passed in.

Laws:
- Every way out passes `_close_books`, which gives back what `turn` has taken.
- Nothing is repeated once a byte of the answer has arrived, or a byte of it has been sent.
- A stream that we opened (200 and comments) ends with an event: an error event where there is no answer.
"""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from llmgw.gateway import answer, local, openai, outgoing, problems, raw, tunnel
from llmgw.gateway.admit import admit, prefix
from llmgw.gateway.answer import Answer, Client
from llmgw.gateway.balance import Target
from llmgw.gateway.books import Ended
from llmgw.gateway.endpoint import Endpoint
from llmgw.gateway.http1 import Request
from llmgw.gateway.openai import ProblemError
from llmgw.gateway.outgoing import Upstream
from llmgw.gateway.reply import ReplyReader
from llmgw.gateway.state import Gateway
from llmgw.gateway.turn import Turn
from llmgw.gateway.usage import TAIL_BYTES

#: A request that two engines died of is not given to a third.
DEATHS_MAX = 2
OK, TOO_MANY, CLIENT_LEFT, SERVER_ERROR, BAD_GATEWAY, UNAVAILABLE = 200, 429, 499, 500, 502, 503
NOBODY = Target("")


class Exchange(Turn):
    """All that one needs at any time has its place from the start (`tests/gateway/test_cost.py` says why)."""

    __slots__ = ("_deaths", "_first_s", "_over", "_pieces", "_request", "_tail")

    def __init__(self, gateway: Gateway, client: Client, request: Request) -> None:
        self._gateway = gateway
        self._client = client
        self._request = request
        self._began = gateway.clock()
        request_id = gateway.request_id(request.own.get(b"x-request-id"))
        self.answer = Answer(client, request, request_id, keep_alive=not gateway.stopping)
        self.endpoint = self.upstream = self.prefix = None
        self._api = openai.NO_API
        self._use = None
        self._target = NOBODY
        self._over = False
        self._tried = ()
        self._deaths = 0
        self._wait = None
        self._asked_at = self._waited_s = self._first_s = 0.0
        self._pieces = -1
        self.who = self._replica = self._why = self._key = ""
        self._tail = b""

    def begin(self) -> None:
        request = self._request
        api = openai.APIS.get(request.path) if request.method == b"POST" else None
        api = api or raw.api(request.path, request.method)
        try:
            if api is None:
                self._api = openai.of(request.path)
                reply = local.respond(self._gateway, request, loopback=self._client.loopback)
                self.answer.whole(*reply)
                self._finish("ok", keep_alive=True)
                return
            self._api = api
            use = self._use = self._gateway.keys.begin(request.own, self._began, request.derived)
            self._target, self._asked = admit(self._gateway, request, api, use, self._client)
            if self._target.route.sticky_prefix_bytes is not None:
                self.prefix = prefix(self._target, request, api)
            self._choose(self._began)
        except ProblemError as problem:
            self._refuse(problem)

    # -- an engine; its connection calls these

    def connected(self, upstream: Upstream) -> None:
        endpoint, request = self.endpoint, self._request
        if self._over or endpoint is None:
            upstream.release()
            return
        self.upstream = upstream
        asked = self._asked
        name = endpoint.upstream_model
        if name and name != asked.model and not self._api.raw:
            try:
                target, body = outgoing.renamed(request, name, asked, self._api)
            except ProblemError as problem:
                upstream.release()
                self.upstream = None
                self._refuse(problem)
                return
        else:
            target, body = asked.target, (request.body,)
        head = outgoing.head(request, endpoint, target, body, self.answer.request_id)
        reader = upstream.send(self, head, body, plain=self.answer.opened or request.http10)
        if self._api.raw or self._api.socket:
            raw.expect(reader, request, self._api)
        if self._client.paused:
            upstream.pause()

    def unreachable(self, why: str) -> None:
        """No connection was made, so nothing was sent and anybody else may have the request."""
        if not self._over:
            self._try_elsewhere(why)

    def answered(self, upstream: Upstream, first: bytes) -> Callable[[bytes], None] | None:
        """The head of the answer is here, and `first` of its body; gives where the rest of it goes."""
        endpoint, reader = self.endpoint, upstream.reader
        assert endpoint is not None
        doubtful = reader.status >= TOO_MANY or endpoint.breaker.open
        if doubtful and self._elsewhere(upstream, endpoint, reader.status):
            return None
        self._free_body()
        if self._gateway.stopping:
            self.answer.keep_alive = False
        now = self._gateway.clock()
        self._first_s = now - self._began
        if self._asked.stream or not self._api.streams:
            self._pieces = self.answer.pieces
            if len(self._target.endpoints) > 1:
                endpoint.firsts.append((now, now - self._asked_at))
        if not self.answer.opened and not reader.switched:
            if self._use is not None and self._use.limited:
                return self._counted(reader, endpoint, first)
            self.answer.relay(reader, endpoint.name, first)
            return self.answer.write
        return self._special(upstream, endpoint, first)

    def _special(
        self, upstream: Upstream, endpoint: Endpoint, first: bytes
    ) -> Callable[[bytes], None] | None:
        if upstream.reader.switched:
            self.answer.switch(upstream.reader, endpoint.name)
            endpoint.tunnels += 1
            tunnel.join(self, self._client, upstream, first, lambda: self._gateway.now)
            return None
        # In the stream that we opened only events can go on; anything else is kept, to be told by one.
        good = upstream.reader.status == OK and answer.is_stream(upstream.reader)
        rest = self.answer.emit if good else self.answer.collect
        rest(first)
        return rest

    def _counted(
        self, reader: ReplyReader, endpoint: Endpoint, first: bytes
    ) -> Callable[[bytes], None]:
        """The same for a key with limits."""

        def write(data: bytes) -> None:
            if reader.done:
                self._give_back()
            self.answer.write(data)

        if reader.done:
            self._give_back()
        self.answer.relay(reader, endpoint.name, first)
        return write

    def _elsewhere(self, upstream: Upstream, endpoint: Endpoint, status: int) -> bool:
        """What the head of an answer tells of its replica; whether the request went to another one for it."""
        if status >= SERVER_ERROR and not self._api.raw:
            return self._erred(upstream, endpoint, status)
        if endpoint.breaker.open:
            endpoint.breaker.worked()
            if self._target.waiting:
                self._gateway.pump(self._target)
        return status == TOO_MANY and self._full(upstream, endpoint)

    def _erred(self, upstream: Upstream, endpoint: Endpoint, status: int) -> bool:
        """An answer of 5xx; whether the request went elsewhere for it."""
        if status == UNAVAILABLE:
            # llama-server says so while it loads, also when it was restarted in its place; and a quick no must not
            # draw traffic. Another replica may do better, and this one too in a moment.
            upstream.cancel()
            self._try_elsewhere("answers 503")
            return True
        why = f"answers {status}"
        if status == BAD_GATEWAY:
            self._deaths += 1
            if self._deaths < DEATHS_MAX:
                upstream.cancel()
                self._try_elsewhere(why)
                return True
            self._failed(endpoint, why)
            return False
        others = self._target.others(endpoint)
        why = f"{endpoint.replica} {why}"
        if endpoint.breaker.erred(why, self._gateway.clock(), others=others):
            self._gateway.meter.count("breaker_opened")
        return False

    def ended(self, upstream: Upstream) -> None:
        """The answer is whole."""
        endpoint, status = self.endpoint, upstream.reader.status
        assert endpoint is not None
        if endpoint.breaker.fails and status < SERVER_ERROR:
            endpoint.breaker.whole()
        if status != OK:
            endpoint.heard_at = self._gateway.now
        elif not self._api.raw:
            self._tail = self.answer.tail(TAIL_BYTES)
        if self.answer.collected is not None:
            said = bytes(self.answer.collected)
            self._why = (
                f"{endpoint.replica} answered {status}"  # and no more: it may quote the prompt
            )
            self._end_with(problems.engine_refused(self._target, status, said))
            return
        if self.answer.opened:
            self._give_back()
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
            if self._deaths < DEATHS_MAX and not reader.any and self._api.repeats:
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

    def tunnelled(self, *, sent: int, last_byte: float, by_client: bool) -> None:
        """A WebSocket has ended; the idle clock starts at its last byte, not here."""
        endpoint = self.endpoint
        assert endpoint is not None
        before = endpoint.last_byte or 0.0
        endpoint.tunnels -= 1
        self.answer.sent += sent
        self._finish("client_left" if by_client else "ok", keep_alive=False)
        endpoint.last_byte = max(before, last_byte)

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
        self._give_back()
        self.answer.error_event(problem, self._api.dialect)
        self._finish("broken", keep_alive=False)

    @override
    def _refuse(self, problem: ProblemError) -> None:
        """Ends the request with a no."""
        self._stop_waiting()
        self._why = problem.message
        self._gateway.meter.refusal(problem.code)
        if self.answer.opened:
            self._end_with(problem)
            return
        self._give_back()
        self.answer.refuse(problem, self._api.dialect)
        self._finish("refused", keep_alive=True)

    def _finish(self, end: str, *, keep_alive: bool) -> None:
        self._close_books(end)
        self._client.finished(keep_alive=keep_alive and self.answer.keep_alive)

    def _free_body(self) -> None:
        """The body is held for a repetition, and no longer."""
        request = self._request
        self._gateway.budget.used -= len(request.body)
        request.body = b""

    def _close_books(self, end: str) -> None:
        """Every way out comes by here, once."""
        assert not self._over
        self._over = True
        if self._request.body:
            self._free_body()
        gateway, out, use = self._gateway, self.answer, self._use
        now = gateway.clock()
        self._leave_endpoint(now)
        if use is not None:
            use.end()
            self._key = use.key.id
        seconds, first_s = now - self._began, self._first_s
        wait_s = None if self._wait is None else self._waited_s or seconds
        pieces = out.pieces - self._pieces if self._pieces >= 0 and self._asked.stream else 0
        gap_s = (seconds - first_s) / pieces if pieces > 1 else None
        gateway.book(
            Ended(
                self._request,
                out,
                self._target.name,
                self._replica,
                self._key,
                seconds,
                first_s,
                end,
                self._why,
                self._tail,
                wait_s,
                gap_s,
            )
        )
