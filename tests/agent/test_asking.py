"""One look at one engine: a load's progress out of its log, Ollama's late load, where the model is after a log was cut.

The engines are a few answers on a socket, or the fake one under a real agent.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from typing_extensions import override

from llmgw.agent import asking, probe
from llmgw.agent.logs import Logs
from llmgw.core.types.messages import Compute, Start
from llmgw.core.types.node import NodeFacts, Probed
from llmgw.core.types.record import Record
from scripts.ports import free_port
from tests.agent.rig import Rig
from tests.engines.running import FAKE

BAR = "Loading safetensors checkpoint shards:  63% Completed | 5/8 [00:05<00:03,  1.0s/it]"
START = Start(
    shard="alpha-1/0",
    replica="alpha-1",
    incarnation="inc-1",
    model="alpha",
    profile="main",
    served_name="gemma3",
)
Answer = tuple[int, dict[str, Any]]


class Hands:
    """As much of the performer as a look needs; the driver lists `listed` bytes for every process."""

    def __init__(self, folder: Path, listed: int | None = None) -> None:
        self.facts = NodeFacts(node="box1")
        self.logs = Logs(folder)
        uses = () if listed is None else (1,)
        self.devices: Any = SimpleNamespace(
            last=SimpleNamespace(uses=uses), bytes_of=lambda _: listed
        )

    def says(self, text: str) -> None:
        path = self.logs.path("alpha-1/0")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def secrets_of(self, _record: Record) -> frozenset[str]:
        return frozenset()

    def pids_of(self, _record: Record) -> tuple[int, ...]:
        return (1,)

    def look(self, record: Record, *, check: bool = True, token: bool = False) -> Probed:
        return asyncio.run(asking.asked(self, record, check=check, token=token))


def record(state: str = "starting", **start: Any) -> Record:
    return Record(start=replace(START, **start), state=state, attempt=2)


@contextmanager
def serving(answer: Callable[[str, dict[str, Any]], Answer]) -> Iterator[int]:
    """An engine's HTTP side: `answer` is given the path and the body."""

    class Handler(BaseHTTPRequestHandler):
        @override
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            status, said = answer(self.path, json.loads(self.rfile.read(size) or b"{}"))
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  http.server's names

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_who_refuses_connections_while_it_loads_says_how_far_it_is_in_its_log(
    tmp_path: Path,
) -> None:
    hands, port = Hands(tmp_path), free_port()
    vllm = record(compute="vllm", port=port)
    assert hands.look(vllm).outcome == "refused"
    hands.says(f"INFO loading\r\n{BAR}\n")
    seen = hands.look(vllm)
    assert (seen.outcome, seen.progress, seen.detail) == ("loading", 0.63, "connection refused")
    # what is up, or is of another kind, is not asked in this way
    assert hands.look(record("ready", compute="vllm", port=port)).outcome == "refused"
    assert hands.look(record(port=port)).outcome == "refused"


def test_a_log_that_cannot_be_read_is_no_failure_of_the_engine(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    hands.logs.path("alpha-1/0").mkdir(parents=True)
    assert hands.look(record(compute="vllm", port=free_port())).outcome == "refused"


def test_an_answer_of_loading_gets_its_percent_from_the_log(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    hands.says("load_tensors: CPU_Mapped model buffer size = 1.00 MiB\n....")
    loading = {"error": {"message": "Loading model", "code": 503}}
    with serving(lambda _path, _body: (503, loading)) as port:
        seen = hands.look(record(compute="llama.cpp", port=port))
        assert (seen.outcome, seen.progress, seen.detail) == ("loading", 0.04, "Loading model")
    with serving(lambda _path, _body: (500, {"error": "broken"})) as port:
        seen = hands.look(record(compute="llama.cpp", port=port))
        assert (seen.outcome, seen.progress) == ("failed", None)


class Ollama:
    """What it answers, as docs/api.md has it; `load` is what it says to a request to load."""

    def __init__(self, load: Answer = (200, {"done": True, "done_reason": "load"})) -> None:
        self.load = load
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.running: Answer = (200, {"models": [{"name": "gemma3", "size": 9, "size_vram": 7}]})
        self.load_s = 0.0

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        self.asked.append((path, body))
        match path:
            case "/api/version":
                return 200, {"version": "0.40"}
            case "/api/generate":
                time.sleep(self.load_s)
                return self.load
            case "/api/ps":
                return self.running
            case _:
                return 404, {}


OLLAMA = {"compute": "ollama", "health": "/api/version"}


def test_ollama_is_told_to_load_before_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for longer than any probe; whose port it is and where the model is, is asked after that."""
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2)
    ollama, hands = Ollama(), Hands(tmp_path, listed=99)
    ollama.load_s = 0.4
    with serving(ollama) as port:
        seen = hands.look(record(port=port, **OLLAMA))
    assert (seen.outcome, seen.compute) == ("ok", Compute(device="gpu", gpu_bytes=7))
    assert [path for path, _ in ollama.asked] == ["/api/version", "/api/generate", "/api/ps"]
    assert ollama.asked[1][1] == {"model": "gemma3", "stream": False}


def test_ollama_that_is_up_is_not_told_again(tmp_path: Path) -> None:
    ollama, hands = Ollama(), Hands(tmp_path)
    ollama.running = (200, {"models": []})
    with serving(ollama) as port:
        seen = hands.look(record("ready", port=port, **OLLAMA))
    assert (seen.outcome, seen.compute) == ("ok", None)
    assert [path for path, _ in ollama.asked] == ["/api/version", "/api/ps"]


@pytest.mark.parametrize(
    ("load", "outcome", "detail"),
    [
        ((404, {"error": "model 'gemma3' not found"}), "failed", "model 'gemma3' not found"),
        ((500, {"error": "model requires more system memory"}), "failed", "more system memory"),
        ((400, {"error": '"nomic" does not support generate'}), "ok", ""),
    ],
)
def test_ollama_that_cannot_load_says_why(
    tmp_path: Path, load: Answer, outcome: str, detail: str
) -> None:
    ollama = Ollama(load)
    ollama.running = (500, {})
    with serving(ollama) as port:
        seen = Hands(tmp_path).look(record(port=port, **OLLAMA))
    assert seen.outcome == outcome
    assert detail in seen.detail


def test_a_newcomer_s_first_token_may_take_its_whole_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM took 51 s for the first request ever (engines.md 5); what is up has the usual time."""
    monkeypatch.setattr(probe, "TOKEN_TIMEOUT_S", 0.2)

    def slow(path: str, _body: dict[str, Any]) -> Answer:
        time.sleep(0.4 if path == "/v1/completions" else 0)
        return 200, {}

    hands = Hands(tmp_path)
    with serving(slow) as port:
        assert hands.look(record(port=port), token=True).outcome == "ok"
    with serving(slow) as port:
        seen = hands.look(record("ready", port=port), token=True)
        assert (seen.outcome, seen.detail) == ("failed", "no answer in 0.2 s")


def test_where_the_model_is_outlives_its_log(tmp_path: Path) -> None:
    """A69: the log is cut at its limit; after that only the driver says something, and it knows no layers."""
    hands = Hands(tmp_path, listed=99)
    known = Compute(device="cuda", layers_gpu=3, layers_total=3, gpu_bytes=5)
    with serving(lambda _path, _body: (200, {})) as port:
        before = record("ready", compute="llama.cpp", port=port)
        assert hands.look(before).compute == Compute(gpu_bytes=99)
        seen = hands.look(replace(before, compute=known))
        assert seen.compute == replace(known, gpu_bytes=99)


def test_a_slow_load_is_seen_and_not_cut_short(rig: Rig) -> None:
    """`loading 63%` while it refuses connections, and its start is not given up (A60)."""
    rig.start_agent().registered()
    script = f'echo "{BAR}"; exec "$0" "$@"'
    command = ("sh", "-c", script, *FAKE, "--port", "$${port}".replace("$$", "$"))
    rig.start(1, command=(*command, "--late-listen", "1"), compute="vllm", start_timeout_s=20.0)
    shard = rig.control.shard("alpha-1/0", "loading")
    assert shard["progress"] == 0.63
    assert rig.control.shard("alpha-1/0", "ready").get("progress") is None
