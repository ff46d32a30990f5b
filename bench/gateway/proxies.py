"""The proxies under test: how each is configured and started, and what its processes have used so far.

Answers for: one process each (two workers where asked), all before the same engine, and for saying which of them this
machine does not have. It may not measure.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from llmgw.core.types.routes import RouteKey, RouteModel, RouteReplica, RouteTable
from scripts.ports import free_port

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "bench"
OTHERS = BUILD / "venv"
MODEL = "qwen3-30b"
#: Sent by each client: llmgw and LiteLLM ask for one.
KEY = b"sk-" + secrets.token_hex(32).encode()
#: LiteLLM takes that long on a busy machine.
START_S = 90.0

NGINX = """
daemon off; master_process off; worker_processes 1; error_log stderr crit; pid {dir}/pid;
events {{ worker_connections 20000; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 2m; keepalive_requests 100000000;
  client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u;
  scgi_temp_path {dir}/s;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 2048; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 1h;
    }}
  }}
}}
"""
#: Picks by the model that the body names, as a gateway does; a body larger than its buffer it cannot look into.
HAPROXY = """
global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout client 1h
  timeout server 1h
  timeout connect 5s
  option http-no-delay
frontend front
  bind 127.0.0.1:{port} backlog 4096
  option http-buffer-request
  http-request set-var(txn.model) req.body,json_query('$.model')
  use_backend %[var(txn.model)]
backend {model}
  http-reuse always
  server engine 127.0.0.1:{engine} pool-max-conn 4096
"""


class NotStartedError(Exception):
    pass


@dataclass
class Proxy:
    name: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    #: pinned to these
    cpus: set[int] = field(default_factory=set)

    def pids(self) -> list[int]:
        """Its processes: the one we started, and what that started."""
        assert self.process is not None
        found, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                todo += map(int, children.read_text().split())
        return found

    def cpu_s(self) -> float:
        """Time on a CPU, of all threads, in the kernel and out of it: /proc/PID/task/*/schedstat, in nanoseconds."""
        files = (f for pid in self.pids() for f in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(int(f.read_text().split()[0]) for f in files) / 1e9

    def rss_mb(self) -> float:
        """Of its largest process."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids()]
        return max(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def start(self, words: list[str], **env: str) -> Proxy:
        cpus = self.cpus
        with (BUILD / f"{self.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                words,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | env,
                start_new_session=True,
            )
        if cpus:
            os.sched_setaffinity(self.process.pid, cpus)
        deadline = time.monotonic() + START_S
        while not _answers(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                message = f"{self.name} did not start; see {BUILD / self.name}.log"
                raise NotStartedError(message)
            time.sleep(0.05)
        for pid in self.pids() if cpus else ():
            os.sched_setaffinity(pid, cpus)
        return self

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def compiled(name: str) -> str:
    """Our own C: the engine stub and the load client."""
    source, out = Path(__file__).with_name(f"{name}.c"), BUILD / name
    newest = max(source.stat().st_mtime, source.with_name("net.h").stat().st_mtime)
    if not out.exists() or out.stat().st_mtime < newest:
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", out, source], check=True)
    return str(out)


def engine(cpus: set[int], reply_bytes: int = 600) -> Proxy:
    port = free_port()
    return Proxy("stub", port, cpus=cpus).start(
        [compiled("stub"), str(port), "50", str(reply_bytes)]
    )


def nginx(engine: int, cpus: set[int]) -> Proxy | str:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        return "nginx is not here (apt install nginx-light)"
    port, folder = free_port(), BUILD / "nginx"
    folder.mkdir(exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(dir=folder, port=port, engine=engine))
    return Proxy("nginx", port, cpus=cpus).start([program, "-p", str(folder), "-c", str(config)])


def haproxy(engine: int, cpus: set[int]) -> Proxy | str:
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if program is None:
        return "haproxy is not here (apt install haproxy)"
    port, config = free_port(), BUILD / "haproxy.cfg"
    config.write_text(HAPROXY.format(port=port, engine=engine, model=MODEL))
    return Proxy("haproxy", port, cpus=cpus).start([program, "-f", str(config), "-db"])


def prototype(engine: int, cpus: set[int]) -> Proxy | str:
    port = free_port()
    words = [sys.executable, "-m", "bench.gateway.prototype", str(port), str(engine)]
    return Proxy("prototype", port, cpus=cpus).start(words)


def aiohttp_pair(engine: int, cpus: set[int]) -> Proxy | str:
    python = OTHERS / "bin" / "python"
    if not _has(python, "aiohttp"):
        return f"aiohttp is not in {OTHERS} (python -m bench.gateway --install)"
    port, script = free_port(), Path(__file__).with_name("aiohttp_pair.py")
    return Proxy("aiohttp", port, cpus=cpus).start(
        [str(python), str(script), str(port), str(engine)]
    )


def litellm(engine: int, cpus: set[int]) -> Proxy | str:
    python = OTHERS / "bin" / "python"
    if not _has(python, "litellm"):
        return f"LiteLLM is not in {OTHERS} (python -m bench.gateway --install)"
    port, config = free_port(), BUILD / "litellm.yaml"
    config.write_text(
        f"model_list: [{{model_name: {MODEL}, litellm_params: {{model: openai/{MODEL}, api_key: none, "
        f"api_base: 'http://127.0.0.1:{engine}/v1'}}}}]\n"
        f"general_settings: {{master_key: {KEY.decode()}}}\n"
    )
    config.chmod(0o600)
    words = [str(OTHERS / "bin" / "litellm"), "--config", str(config), "--port", str(port)]
    words += ["--host", "127.0.0.1"]
    return Proxy("litellm", port, cpus=cpus).start(words, LITELLM_LOCAL_MODEL_COST_MAP="True")


def _has(python: Path, module: str) -> bool:
    spec = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
    return python.exists() and not subprocess.run([python, "-c", spec], check=False).returncode


def llmgw(engine: int, cpus: set[int], workers: int = 1) -> Proxy | str:
    """As an operator starts it, with everything on: a key, the access log to a file, metrics, breaker, limits.

    The route table lies in its folder, and its control is away: one call now and then that is refused.
    """
    port = free_port()
    folder = BUILD / f"llmgw-{workers}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    replica = RouteReplica(replica=f"{MODEL}/1", endpoint=f"http://127.0.0.1:{engine}")
    model = RouteModel(status="loaded", max_in_flight=4096, replicas=(replica,))
    key = RouteKey(id="bench", sha256=hashlib.sha256(KEY).hexdigest(), models=(MODEL,))
    table = RouteTable(version=1, models={MODEL: model}, keys=(key,))
    (folder / "routes.json").write_bytes(msgspec.json.encode(table))
    words = {
        "listen": f"127.0.0.1:{port}",
        "control": f"http://127.0.0.1:{free_port()}",
        "state-dir": str(folder),
        "workers": str(workers),
    }
    given = [w for name, value in words.items() for w in (f"--{name}", value)]
    name = "llmgw" if workers == 1 else f"llmgw-{workers}"
    return Proxy(name, port, cpus=cpus).start([sys.executable, "-m", "llmgw", "gateway", *given])
