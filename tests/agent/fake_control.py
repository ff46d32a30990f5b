"""A control that only listens and says what a test tells it: the agent's side of contract/http.md, over real HTTP.

Answers for: sessions, a command queue with `after`, and everything the agent said, in order. It may not decide.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

import msgspec
from typing_extensions import override

from llmgw.core.types.messages import Command

POLL_S = 2.0


class FakeControl:
    """`epoch` and `leader_uuid` go on every command; `down` answers 503 to all, `token` is what it wants."""

    def __init__(self, port: int = 0, token: str = "") -> None:
        self.epoch, self.leader_uuid, self.leader, self.lease = 1, "L1", True, "file"
        self.token = token
        self.down = self.closed = False
        self.match = True
        self.programs: list[str] = []
        self.registers: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.gone: list[list[str]] = []
        self.shards: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[str, str, int]] = []
        self.queue: list[dict[str, Any]] = []
        self.sent = 0
        self.acked = 0
        self.session = ""
        self.unauthorised = 0
        #: the nodes that said who they are before they were let in
        self.nodes: set[str] = set()
        self.changed = threading.Condition()
        self.server = _Server(("127.0.0.1", port), _Handler)
        self.server.control = self
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.down = self.closed = True
        with self.changed:
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    # ------------------------------------------------ for tests

    def send(self, command: Command, **changes: Any) -> int:
        """Queue it, stamped with the session, the epoch and the next number."""
        with self.changed:
            self.sent += 1
            plain = msgspec.to_builtins(command)
            stamp = {"epoch": self.epoch, "leader_uuid": self.leader_uuid, "session": self.session}
            self.queue.append({**plain, **stamp, "seq": self.sent, **changes})
            self.changed.notify_all()
            return self.sent

    def wait(self, test: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """Until the agent has said what makes `test` true."""
        end = time.monotonic() + timeout_s
        with self.changed:
            while not (found := test()):
                left = end - time.monotonic()
                assert left > 0, (
                    f"waited {timeout_s} s for {what}; shards: {self.shards}; refused: {self.refused}"
                )
                self.changed.wait(min(left, 0.5))
        return found

    def shard(self, name: str, state: str, attempt: int = 0) -> dict[str, Any]:
        """The shard once it is in that state."""

        def there() -> dict[str, Any] | None:
            found = self.shards.get(name)
            fits = found and found["state"] == state and found["attempt"] >= attempt
            return found if fits else None

        found: dict[str, Any] = self.wait(there, f"{name} {state}")
        return found

    def refusal(self, reason: str) -> dict[str, Any]:
        found: dict[str, Any] = self.wait(
            lambda: next((r for r in self.refused if r["reason"] == reason), None),
            f"refusal {reason}",
        )
        return found

    # ------------------------------------------------ the protocol

    def register(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.changed:
            self.registers.append(body)
            self.session = f"s{len(self.registers)}"
            self.shards = {}
            self._take(body["shards"])
            self.queue, self.sent, self.acked = [], 0, 0
            self.changed.notify_all()
            said = {"leader": self.leader, "epoch": self.epoch, "leader_uuid": self.leader_uuid}
            return 200, {"session": self.session, "lease": self.lease, "future": 1, **said}

    def commands(self, session: str, after: int) -> tuple[int, dict[str, Any]]:
        end = time.monotonic() + POLL_S
        with self.changed:
            self.acked = max(self.acked, after)
            self.changed.notify_all()
            while session == self.session and not self.down:
                found = [c for c in self.queue if c["seq"] > after]
                left = end - time.monotonic()
                if found or left <= 0:
                    return 200, {"commands": found, "leader": self.leader, "epoch": self.epoch}
                self.changed.wait(left)
        return 410, {}

    def told(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.changed:
            if body["session"] != self.session:
                return 410, {}
            self.events.append(body)
            self._take(body["shards"])
            self.refused += body["refused"]
            for shard, incarnation in body["gone"]:
                self.gone.append([shard, incarnation])
                self.shards.pop(shard, None)
            self.changed.notify_all()
            return 200, {"match": self.match, "epoch": self.epoch, "programs": self.programs}

    def _take(self, shards: list[dict[str, Any]]) -> None:
        for shard in shards:
            self.shards[shard["shard"]] = shard
            self.history.append((shard["shard"], shard["state"], shard["attempt"]))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    control: FakeControl


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def control(self) -> FakeControl:
        assert isinstance(self.server, _Server)
        return self.server.control

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlparse(self.path)
        query = {k: v[0] for k, v in parse_qs(url.query).items()}
        if url.path == "/healthz":
            self._answer(200, {})
            return
        if self._refused():
            return
        self._answer(*self.control.commands(query["session"], int(query["after"])))

    def do_POST(self) -> None:
        body = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        path = urlparse(self.path).path
        control = self.control
        answer = control.register if path == "/agent/v1/register" else control.told
        self._answer(*answer(body))

    def _refused(self) -> bool:
        control = self.control
        if control.closed:
            self.close_connection = True
            return True
        if control.down:
            self._answer(503, {"error": {"message": "starting", "code": "starting", "hint": ""}})
            return True
        if control.token and self.headers.get("Authorization") != f"Bearer {control.token}":
            with control.changed:
                control.unauthorised += 1
                control.nodes.add(self.headers.get("X-LLMGW-Node", ""))
                control.changed.notify_all()
            self._answer(401, {"error": {"message": "wrong token", "code": "unauthorised"}})
            return True
        return False

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = msgspec.json.encode(value)
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
