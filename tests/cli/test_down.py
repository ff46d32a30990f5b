"""`llmgw down`: what it asks, and waits that end."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from typing_extensions import override

from tests.cli.say import Said, llmgw

Json = dict[str, Any]


class Control(HTTPServer):
    """Answers with this status, and remembers what it was told to do."""

    status: Json
    posted: list[str]


class Answer(BaseHTTPRequestHandler):
    @property
    def control(self) -> Control:
        assert isinstance(self.server, Control)
        return self.server

    def do_GET(self) -> None:
        self._send(self.control.status)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.control.posted.append(self.path)
        self._send({})

    def _send(self, value: Json) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


class Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


@pytest.fixture
def control() -> Iterator[Control]:
    server = Control(("127.0.0.1", 0), Answer)
    shards = [
        {"shard": f"alpha-{n}/0", "node": n, "pid": 7, "state": "ready"} for n in ("box1", "box2")
    ]
    nodes = [{"node": "box1", "state": "ready"}, {"node": "box2", "state": "unreachable"}]
    server.status = {"nodes": nodes, "replicas": [{"shards": shards}]}
    server.posted = []
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def down(control: Control, *words: str) -> Said:
    return llmgw(
        "down", "--engines", "--control", f"http://127.0.0.1:{control.server_port}", *words
    )


def test_no_is_an_answer(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    said = down(control)
    assert said.code == 1
    assert "this ends 2 engines: alpha-box1/0 on box1 (pid 7)" in said.err
    assert "llmgw: not confirmed, nothing was ended\n" in said.err
    assert control.posted == []


def test_a_node_that_does_not_answer_is_not_waited_for(control: Control) -> None:
    control.status["replicas"][0]["shards"].pop(0)
    said = down(control, "--yes")
    assert said.code == 3
    assert said.err == (
        "llmgw: cannot be ended, box2 does not answer: alpha-box2/0 on box2 (pid 7)\n"
        "hint: start the agent there and try again; `llmgw down` ends control and leaves them running\n"
    )
    assert control.posted == ["/api/v1/end"]
