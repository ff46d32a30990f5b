"""An engine that misbehaves on request: the OpenAI subset and a list of bad habits, stdlib only.

Answers for: a child process that is up in well under 0.1 s and fails in exactly the way its flags
say. It may not import anything of ours: the agent starts it by its path, as any engine. Flags it
does not know are ignored, so llama-server's command line fits.

GET /stats   {"pid", "child", "requests", "active", "completed", "cancelled"}: cancelled counts the
             completions whose client went away, so a test sees that a cancel came through
GET /last    the last completion request as it came in: {"method", "path", "headers", "body"}
POST /set    {"hang_after": 0, "health_status": 500, ...}: changes flags (- is _) while it runs
WebSockets   to any path: what the client says comes back, as it came
"""
# mypy: disable-error-code="explicit-override"

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, NoReturn

Json = dict[str, object]


def options(argv: list[str]) -> argparse.Namespace:
    about = str(__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser(allow_abbrev=False, description=about)
    add = parser.add_argument

    def number(name: str, default: float, text: str) -> None:
        add(name, type=type(default), default=default, metavar="N", help=text)

    add("--host", default="127.0.0.1")
    number("--port", 8080, "")
    add("-a", "--alias", default="fake", help="model id, and what it answers: ' hello from ALIAS.'")
    number("--tokens", 0, "answer N tokens ' t1 t2 ...' instead")
    number("--token-interval-s", 0.0, "pause before each token")
    number("--load-s", 0.0, "503 'Loading model' for this long")
    number("--late-listen", 0.0, "bind the port only after N seconds")
    add("--say-early", action="store_true", help="say that it listens before it does")
    add("--reuse-port", action="store_true", help="bind with SO_REUSEPORT")
    add("--api-key-env", metavar="NAME", help="completions want 'Bearer $NAME', else 401")
    number("--health-status", 200, "what /health answers once loaded")
    number("--error-status", 0, "every completion is answered with this status")
    number("--hang-after", -1, "after N completions they hang; /health stays 200")
    number("--cut-after", -1, "drop the connection after N tokens of a stream")
    number("--die-after", -1, "exit once N completions were answered")
    number("--die-after-s", 0.0, "exit N seconds after the start")
    number("--exit-code", 1, "of the two above; -N: die of signal N")
    add("--exit-at-once", type=int, metavar="CODE", help="exit at the start; -N: die of signal N")
    add("--last-words", default="fake engine: out of memory", help="last stderr line then")
    add("--ignore-term", action="store_true", help="SIGTERM, SIGINT do nothing; the child's too")
    number("--term-delay-s", 0.0, "exit this long after SIGTERM, with code 0")
    add("--fork", action="store_true", help="a child in the same session that outlives this one")
    number("--child-life-s", 600, "the child ends by itself after this long")
    add("--retitle", metavar="TITLE", help="overwrite argv, and the environment unless SPT_NOENV=1")
    number("--log-flood", 0, "write N bytes to stdout once it listens")
    return parser.parse_known_args(argv)[0]


def leave(code: int, words: str) -> NoReturn:
    print(words, file=sys.stderr, flush=True)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def fork(flags: argparse.Namespace) -> int:
    """A worker as vLLM has them: same session, no socket, alive after its parent is gone."""
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(flags.child_life_s)  # no test leaves one behind for ever
    signal.signal(signal.SIGTERM, signal.SIG_IGN if flags.ignore_term else signal.SIG_DFL)
    while True:
        signal.pause()


def retitle(title: str) -> None:
    """What setproctitle does: over argv and, unless SPT_NOENV is set, the environment too."""
    import ctypes  # noqa: PLC0415  5 ms that only this flag pays

    with open("/proc/self/stat") as file:  # noqa: PTH123  pathlib costs as much
        fields = file.read().rpartition(")")[2].split()
    start, argv_end, _, env_end = (int(field) for field in fields[45:49])
    room = (argv_end if os.environ.get("SPT_NOENV") else env_end) - start
    ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
    ctypes.CDLL(None).prctl(15, title.encode()[:15], 0, 0, 0)  # PR_SET_NAME


class Engine:
    """The state that all connections share."""

    def __init__(self, flags: argparse.Namespace, child: int) -> None:
        self.flags = flags
        self.child = child
        self.loaded_at: float = asyncio.get_running_loop().time() + flags.load_s
        self.requests = self.active = self.completed = self.cancelled = 0
        self.last: Json = {}

    def loading(self) -> bool:
        return asyncio.get_running_loop().time() < self.loaded_at

    def stats(self) -> Json:
        names = ("child", "requests", "active", "completed", "cancelled")
        return {"pid": os.getpid(), **{name: getattr(self, name) for name in names}}

    async def tokens(self, most: int | None) -> AsyncIterator[str]:
        count = self.flags.tokens
        said = [f" t{i}" for i in range(1, count + 1)] or [
            " hello",
            " from",
            f" {self.flags.alias}.",
        ]
        for word in said[:most]:
            await asyncio.sleep(self.flags.token_interval_s)
            yield word

    def refusal(self, headers: dict[str, str]) -> tuple[int, Json] | None:
        flags = self.flags
        if self.loading():
            return error(503, "Loading model")
        key = flags.api_key_env and f"Bearer {os.environ[flags.api_key_env]}"
        if key and headers.get("authorization") != key:
            return error(401, "Invalid API Key")
        if flags.error_status:
            return error(flags.error_status, "as told by --error-status")
        return None

    def plain(self, method: str, path: str, body: bytes) -> tuple[int, Json]:
        """Everything but completions: answered at once."""
        match method, path:
            case "GET", "/health":
                if self.loading():
                    return error(503, "Loading model")
                return self.flags.health_status, {"status": "ok"}
            case "GET", "/v1/models":
                model = {"id": self.flags.alias, "object": "model", "owned_by": "fake"}
                return 200, {"object": "list", "data": [model]}
            case "GET", "/stats":
                return 200, self.stats()
            case "GET", "/last":
                return 200, self.last
            case "POST", "/set":
                vars(self.flags).update(json.loads(body))
                return 200, {}
            case _:
                return error(404, f"no {method} {path} here")


def error(code: int, message: str) -> tuple[int, Json]:
    return code, {"error": {"code": code, "message": message, "type": "fake_error"}}


def head(status: int, *lines: str) -> bytes:
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    return "\r\n".join([first, *lines, "", ""]).encode()


class Connection(asyncio.Protocol):
    """One client: its requests one after another, each a task that ends when it goes away."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.buffer = b""
        self.echoes = False
        self.task: asyncio.Task[None] | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.echoes:
            self.transport.write(data)
            return
        self.buffer += data
        self.next_request()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.task:
            self.task.cancel()

    def next_request(self) -> None:
        raw, gap, rest = self.buffer.partition(b"\r\n\r\n")
        if self.task or not gap:
            return
        first, *lines = raw.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        chunked = headers.get("transfer-encoding") == "chunked"
        size = rest.find(b"0\r\n\r\n") + 5 if chunked else int(headers.get("content-length", 0))
        if len(rest) < size or (chunked and size < 5):
            return
        body = dechunk(rest[:size]) if chunked else rest[:size]
        self.buffer = rest[size:]
        method, path, _ = first.split(" ", 2)
        if key := headers.get("sec-websocket-key"):
            self.echo(key)
            return
        serving = self.serve(method, path.partition("?")[0], headers, body)
        self.task = asyncio.get_running_loop().create_task(serving)

    def echo(self, key: str) -> None:
        import base64  # noqa: PLC0415  as above
        import hashlib  # noqa: PLC0415

        self.echoes = True
        digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        accept = f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}"
        self.transport.write(head(101, "Upgrade: websocket", "Connection: Upgrade", accept))
        self.data_received(self.buffer)

    async def serve(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        engine = self.engine
        if method == "POST" and path in ANSWERS:
            text = body.decode(errors="replace")
            engine.last = {"method": method, "path": path, "headers": headers, "body": text}
            engine.requests += 1
            engine.active += 1
            try:
                asked = {"file": body.count(0xFF)} if path == FORM else json.loads(body)
                await self.complete(path, headers, asked)
            except asyncio.CancelledError:
                engine.cancelled += 1
                return
            finally:
                engine.active -= 1
        else:
            self.answer(*engine.plain(method, path, body))
        self.task = None
        if headers.get("connection", "").lower() == "close":
            self.transport.close()
        self.next_request()

    def answer(self, status: int, value: Json) -> None:
        body = json.dumps(value).encode()
        lines = ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self.transport.write(head(status, *lines) + body)

    async def complete(self, path: str, headers: dict[str, str], asked: dict[str, Any]) -> None:
        engine, flags = self.engine, self.engine.flags
        if refused := engine.refusal(headers):
            self.answer(*refused)
            return
        if 0 <= flags.hang_after <= engine.completed:
            await asyncio.Event().wait()
        if asked.get("stream") and path != "/v1/embeddings":
            await self.stream(path, asked)
        else:
            words = [word async for word in engine.tokens(asked.get("max_tokens"))]
            if "file" in asked:
                words = [f"{asked['file']} bytes"]  # of 0xff, in what was uploaded
            self.answer(200, ANSWERS[path](flags.alias, words))
        engine.completed += 1
        if 0 <= flags.die_after <= engine.completed:
            await asyncio.sleep(0.02)  # the answer leaves first
            leave(flags.exit_code, flags.last_words)

    async def stream(self, path: str, asked: dict[str, Any]) -> None:
        model, cut = self.engine.flags.alias, self.engine.flags.cut_after
        said = 0
        lines = ["Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
        self.transport.write(head(200, *lines))
        async for word in self.engine.tokens(asked.get("max_tokens")):
            if said == cut:
                self.transport.abort()
                return
            said += 1
            self.event(json.dumps(delta(path, model, word, None)))
        self.event(json.dumps(delta(path, model, "", "stop")))
        if (asked.get("stream_options") or {}).get("include_usage"):
            last = delta(path, model, "", None)
            self.event(json.dumps(last | {"choices": [], "usage": usage(said)}))
        self.event("[DONE]")
        self.transport.write(b"0\r\n\r\n")

    def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def dechunk(raw: bytes) -> bytes:
    out = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        count = int(size.partition(b";")[0], 16)
        out, raw = out + raw[:count], raw[count + 2 :]
    return out


def usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}


def envelope(kind: str, model: str, reason: str | None, **choice: object) -> Json:
    choices = [{"index": 0, "finish_reason": reason, **choice}]
    return {"id": "fake-1", "object": kind, "created": 0, "model": model, "choices": choices}


def delta(path: str, model: str, word: str, reason: str | None) -> Json:
    if path == "/v1/completions":
        return envelope("text_completion", model, reason, text=word)
    said = {"content": word} if word else {}
    return envelope("chat.completion.chunk", model, reason, delta=said)


def chat(model: str, words: list[str]) -> Json:
    message = {"role": "assistant", "content": "".join(words)}
    whole = envelope("chat.completion", model, "stop", message=message)
    return whole | {"usage": usage(len(words))}


def completion(model: str, words: list[str]) -> Json:
    whole = envelope("text_completion", model, "stop", text="".join(words))
    return whole | {"usage": usage(len(words))}


def embedding(model: str, _words: list[str]) -> Json:
    data = [{"object": "embedding", "index": 0, "embedding": [0.0, 0.6, 0.8]}]
    return {"object": "list", "model": model, "data": data, "usage": usage(0)}


FORM = "/v1/audio/transcriptions"
ANSWERS: dict[str, Callable[[str, list[str]], Json]] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completion,
    "/v1/embeddings": embedding,
    FORM: lambda _model, words: {"text": "".join(words)},
}


def listener(flags: argparse.Namespace) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in flags.host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if flags.reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((flags.host, flags.port))
        sock.listen(512)
    except OSError as refused:
        leave(1, f"fake engine: cannot bind {flags.host}:{flags.port}: {refused.strerror}")
    return sock


#: What a flood ends with.
FLOOD_ENDS = "fake engine: that was all"


async def flood(total: int) -> None:
    for _ in range(-(-total // 65536)):
        sys.stdout.write(("x" * 1023 + "\n") * 64)
        sys.stdout.flush()
        await asyncio.sleep(0)
    if total:
        await asyncio.sleep(0.5)  # its end is not in the middle of it
        print(FLOOD_ENDS, flush=True)


async def serve(flags: argparse.Namespace, child: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, (lambda: None) if flags.ignore_term else stop.set)
    if flags.die_after_s:
        loop.call_later(flags.die_after_s, leave, flags.exit_code, flags.last_words)
    engine = Engine(flags, child)
    words = f"fake engine {flags.alias}: listening on {flags.host}:{flags.port}"
    if flags.say_early:
        print(words, flush=True)
    await asyncio.sleep(flags.late_listen)
    await loop.create_server(lambda: Connection(engine), sock=listener(flags), backlog=512)
    if not flags.say_early:
        print(words, flush=True)
    await flood(flags.log_flood)
    await stop.wait()
    await asyncio.sleep(flags.term_delay_s)
    os._exit(0)  # streams and all


def main() -> None:
    flags = options(sys.argv[1:])
    if flags.exit_at_once is not None:
        leave(flags.exit_at_once, flags.last_words)
    child = fork(flags) if flags.fork else 0
    if flags.retitle:
        retitle(flags.retitle)
    asyncio.run(serve(flags, child))


if __name__ == "__main__":
    main()
