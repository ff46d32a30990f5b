"""A control of one answer a path, over real HTTP: for what a verb asks, sends, and makes of the answer.

Answers for: remembering what it was sent. It may not decide anything.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from typing_extensions import override

Json = dict[str, Any]


class Stub(HTTPServer):
    """`answers`: "GET /path" -> value, or (status, value); `sent`: what came with a body, in order."""

    answers: dict[str, Any]
    sent: list[tuple[str, Json]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    @property
    def stub(self) -> Stub:
        assert isinstance(self.server, Stub)
        return self.server

    def do_GET(self) -> None:
        self._answer(f"GET {self.path}")

    def do_POST(self) -> None:
        self._sent("POST")

    def do_PUT(self) -> None:
        self._sent("PUT")

    def _sent(self, method: str) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.stub.sent.append((f"{method} {self.path}", body))
        self._answer(f"{method} {self.path}")

    def _answer(self, what: str) -> None:
        found = self.stub.answers.get(what, {})
        status, value = found if isinstance(found, tuple) else (200, found)
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Stub]:
    server = Stub(("127.0.0.1", 0), _Answer)
    server.answers, server.sent = {}, []
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refused(message: str, hint: str = "", status: int = 409) -> tuple[int, Json]:
    return status, {"error": {"message": message, "hint": hint}}


class Terminal(io.StringIO):
    """Stdin of somebody who types that."""

    @override
    def isatty(self) -> bool:
        return True
