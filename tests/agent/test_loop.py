"""The agent end to end: real agent process, real engine processes, a control that says what it is told."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.core.failed import no_program
from llmgw.core.types.catalog import Ready, Restart, Stop
from scripts.ports import free_port
from tests.agent.rig import Rig, alive, until

#: An engine that never answers, counts its TERMs in its log and dies of KILL only; it says from when on.
STUBBORN = ("sh", "-c", 'trap "echo got TERM" TERM; echo deaf; while :; do sleep 0.05; done')


def deaf(rig: Rig, n: int = 1) -> int:
    """Its pid, once a TERM does not end it any more."""
    pid = int(rig.control.shard(f"alpha-{n}/0", "starting")["pid"])
    until(lambda: "deaf" in rig.engine_log(n), "its trap")
    return pid


def test_start_ready_stop_forget(rig: Rig) -> None:
    rig.start_agent().registered()
    first = rig.control.registers[0]
    assert (first["node"], first["reattached"], first["shards"]) == ("box1", True, [])
    shard = rig.ready()
    pid = shard["pid"]
    assert alive(pid)
    assert os.getsid(pid) == pid
    assert httpx.get(f"{shard['endpoint']}/health", trust_env=False).status_code == 200
    rig.stop()
    assert rig.control.shard("alpha-1/0", "stopped")["pid"] is None
    assert not alive(pid)
    assert rig.record()["state"] == "stopped"
    rig.forget()
    rig.control.wait(lambda: ["alpha-1/0", "inc-1"] in rig.control.gone, "gone")
    assert not rig.record_path().exists()


def test_a_dead_engine_is_restarted_in_place(rig: Rig) -> None:
    """A67, A25: same port, though a client's connection is left in TIME_WAIT on it, and no younger."""
    rig.start_agent().registered()
    first = rig.ready()
    with socket.create_connection(("127.0.0.1", first["port"])):  # leaves TIME_WAIT on its port
        os.kill(first["pid"], signal.SIGKILL)
        second = rig.control.shard("alpha-1/0", "ready", attempt=2)
    assert second["pid"] != first["pid"]
    assert (second["port"], second["started_at"]) == (first["port"], first["started_at"])


def test_restarts_are_bounded_and_end_in_words(rig: Rig) -> None:
    """A67: the engine's own last words among them."""
    rig.start_agent().registered()
    rig.start(1, "--exit-at-once", "3", "--last-words", "CUDA error: out of memory")
    shard = rig.control.shard("alpha-1/0", "failed")
    assert (shard["attempt"], shard["gave_up"]) == (3, True)
    assert shard["error"] == (
        "gave up after 3 in 30m: exited with code 3: CUDA error: out of memory - out of GPU memory: "
        "shorten the context, take a smaller quantisation, or give more GPU memory"
    )


MISSING: list[tuple[dict[str, Any], str]] = [
    (
        {"command": ("/no/such/llama-server",), "engine": "my-llama"},
        "engine binary /no/such/llama-server not found on box1 - set engines.my-llama.command",
    ),
    ({"command": ("no-such-engine",)}, "engine binary no-such-engine is not on the PATH of box1"),
    ({"command": ("/etc/passwd",)}, "engine binary /etc/passwd is not executable on box1"),
    ({"command": ("/tmp",)}, "engine binary /tmp is a directory on box1"),
    ({"command": ("sh", "${what}")}, "unknown placeholder ${what}"),
    ({"env": {"A": "${env.NOT_SET}"}}, "NOT_SET is not set in the agent's environment"),
    ({"env": {"A": "${file./no/such}"}}, "/no/such cannot be read: No such file or directory"),
]


def test_what_cannot_start_says_what_is_missing(rig: Rig) -> None:
    """One clear sentence each, and no second try."""
    rig.start_agent().registered()
    for n, (changes, _) in enumerate(MISSING, 1):
        rig.start(n, **changes)
    for n, (_, words) in enumerate(MISSING, 1):
        shard = rig.control.shard(f"alpha-{n}/0", "failed")
        assert words in shard["error"]
        assert shard["attempt"] == 1
        assert no_program(shard["error"]) == shard["error"].startswith("engine binary ")


def test_a67_an_argument_that_its_build_does_not_know_is_tried_twice(rig: Rig) -> None:
    """At once, and then it is shown: a back-off would be a minute here."""
    rig.start_agent().registered()
    says = "echo error: invalid argument: --nope; exit 1"
    rig.start(1, command=("sh", "-c", says), restart=Restart(max=5, backoff_s=60.0))
    shard = rig.control.shard("alpha-1/0", "failed")
    assert (shard["attempt"], shard["gave_up"]) == (2, True)
    assert shard["error"] == (
        "gave up after 2 in 30m: exited with code 1: error: invalid argument: --nope - this build does not know that "
        "argument: look at args of the profile; changed, it starts again by itself"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"\x7fELF\2\1\1",
            "Exec format error - it is built for another machine, or is no program:",
        ),
        (
            b"#!/no/such/python\n",
            "No such file or directory - the interpreter or loader that it names",
        ),
    ],
)
def test_a_program_that_this_machine_cannot_run(
    rig: Rig, tmp_path: Path, content: bytes, words: str
) -> None:
    """No second try, in words by which control knows that it is this node's lack (A67)."""
    program = tmp_path / "llama-server"
    program.write_bytes(content)
    program.chmod(0o755)
    rig.start_agent().registered()
    rig.start(1, command=(str(program),), engine="mine")
    shard = rig.control.shard("alpha-1/0", "failed")
    assert shard["attempt"] == 1
    assert shard["error"].startswith(f"engine binary {program} cannot be executed on box1: {words}")
    assert shard["error"].endswith(
        "set engines.mine.command in the catalog to a program that box1 has"
    )
    assert no_program(shard["error"])


def test_an_engine_that_dies_of_a_signal(rig: Rig) -> None:
    rig.start_agent().registered()
    rig.start(1, "--exit-at-once=-11", restart=Restart(max=0))
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert error == "killed by signal 11 (SIGSEGV: it crashed): fake engine: out of memory"


def test_a_stop_is_one_term_and_ends_the_whole_tree(rig: Rig) -> None:
    """A child in the session that ignores TERM outlives its parent; it is killed after the grace (F65)."""
    rig.start_agent().registered()
    shard = rig.ready(1, "--fork", "--ignore-term", stop=Stop(grace_s=0.5))
    child = httpx.get(f"{shard['endpoint']}/stats", trust_env=False).json()["child"]
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert not alive(shard["pid"])
    assert not alive(child)
    rig.start(2, command=STUBBORN, stop=Stop(grace_s=0.5))
    deaf(rig, 2)
    rig.stop(2)
    rig.stop(2)
    rig.control.shard("alpha-2/0", "stopped")
    assert rig.engine_log(2).count("got TERM") == 1


def test_the_worker_of_a_dead_engine_is_ended_before_the_next_start(rig: Rig) -> None:
    rig.start_agent().registered()
    shard = rig.ready(1, "--fork", "--ignore-term")
    child = httpx.get(f"{shard['endpoint']}/stats", trust_env=False).json()["child"]
    os.kill(shard["pid"], signal.SIGKILL)
    rig.control.shard("alpha-1/0", "ready", attempt=2)
    assert not alive(child)


def test_drain_keeps_serving(rig: Rig) -> None:
    rig.start_agent().registered()
    shard = rig.ready()
    rig.drain()
    assert rig.control.shard("alpha-1/0", "draining")["desired"] == "draining"
    assert alive(shard["pid"])
    rig.kill9().again()
    assert rig.control.shard("alpha-1/0", "draining")["pid"] == shard["pid"]
    os.kill(shard["pid"], signal.SIGKILL)
    rig.control.shard("alpha-1/0", "stopped")


def test_a_hung_engine_gets_unhealthy_and_is_not_killed(rig: Rig) -> None:
    """F64: the process is alive: health is control's business."""
    rig.start_agent().registered()
    shard = rig.ready(ready=Ready(failures=2, of=2))
    setting = {"health_status": 500}
    httpx.post(f"{shard['endpoint']}/set", json=setting, trust_env=False)
    assert "HTTP 500" in rig.control.shard("alpha-1/0", "unhealthy")["error"]
    assert alive(shard["pid"])
    httpx.post(f"{shard['endpoint']}/set", json={"health_status": 200}, trust_env=False)
    rig.control.shard("alpha-1/0", "ready")


def test_loading_is_shown(rig: Rig) -> None:
    rig.start_agent().registered()
    rig.start(1, "--load-s", "0.6", "--late-listen", "0.3")
    for state in ("starting", "loading", "ready"):
        rig.control.shard("alpha-1/0", state)


def test_a_squatter_is_named(rig: Rig) -> None:
    """F69, A45: a plain bind fails, so the start is refused before anything is journaled."""
    rig.start_agent().registered()
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        rig.start(port=port)
        refusal = rig.control.refusal("port_in_use")
    assert refusal["resource"] == f"port {port}"
    assert f"pid {os.getpid()}" in refusal["why"]
    assert not rig.record_path().exists()


def test_a_newcomer_that_shares_its_port_with_a_stranger_is_stopped(rig: Rig) -> None:
    """F70: both bind with SO_REUSEPORT, so neither bind fails; the answer may come from either."""
    rig.start_agent().registered()
    port = free_port()
    rig.start(1, "--reuse-port", "--late-listen", "1.0", port=port)
    rig.control.shard("alpha-1/0", "starting")
    with Stranger(port):
        shard = rig.control.shard("alpha-1/0", "failed")
    assert f"port {port} answers, but it is not ours" in shard["error"]
    assert f"pid {os.getpid()}" in shard["error"]


class Stranger:
    """A stranger that listens on a shared port and says 200 to everything."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.sock.bind(("127.0.0.1", port))
        self.sock.listen(64)
        self.thread = threading.Thread(target=self.serve)

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.sock.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        self.thread.join()


def test_a_full_disk_refuses_the_start_and_is_told(rig: Rig) -> None:
    """Nothing is started that is not journaled."""
    rig.start_agent().registered()
    records = rig.state_dir / "records"
    records.rename(rig.folder / "aside")
    records.write_text("in the way")
    rig.start()
    refusal = rig.control.refusal("cannot_journal")
    assert "Not a directory" in refusal["why"]
    assert not rig.engine_pids()
    records.unlink()
    (rig.folder / "aside").rename(records)
    rig.ready()


def test_secrets_are_nowhere_to_be_seen(rig: Rig, tmp_path: Path) -> None:
    secret = tmp_path / "hf-token"
    secret.write_text("hf_secret_value\n")
    rig.start_agent(MY_SECRET="env_secret_value").registered()
    shard = rig.ready(
        env={"A": "${env.MY_SECRET}", "B": f"${{file.{secret}}}", "LLAMA_API_KEY": "${api_key}"}
    )
    env = Path(f"/proc/{shard['pid']}/environ").read_bytes()
    assert b"A=env_secret_value\0B=hf_secret_value\0" in env
    key = shard["api_key"]
    assert f"LLAMA_API_KEY={key}".encode() in env
    assert b"LLMGW_NODE_TOKEN" not in env
    argv = Path(f"/proc/{shard['pid']}/cmdline").read_bytes()
    seen = rig.record_path().read_text() + rig.log() + argv.decode()
    assert "env_secret_value" not in seen
    assert "hf_secret_value" not in seen
    inventory = httpx.get(f"http://{rig.settings['listen']}/v1/inventory", trust_env=False).text
    assert key not in inventory
    assert key in rig.record_path().read_text()
    assert rig.record_path().stat().st_mode & 0o777 == 0o600


def test_the_read_only_api_of_a_running_agent(rig: Rig) -> None:
    rig.settings["token"] = "node-token"
    rig.start_agent().registered()
    shard = rig.ready(1, "--alias", "one")
    base = f"http://{rig.settings['listen']}"
    with httpx.Client(base_url=base, trust_env=False) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/v1/inventory").status_code == 401
        client.headers["Authorization"] = "Bearer node-token"
        assert client.get("/v1/inventory").json()["shards"][0]["pid"] == shard["pid"]
        assert client.get("/v1/status").json()["controls"] == [
            {"url": rig.control.url, "state": "leads"}
        ]
        assert "fake engine one: listening" in client.get("/v1/logs/alpha-1/0").text
        assert (
            'llmgw_shard_attempt{model="alpha",shard="alpha-1/0"} 1.0'
            in client.get("/metrics").text
        )
        assert client.post("/v1/inventory").status_code == 405


def test_ending_the_agent_leaves_the_engines_and_says_so(rig: Rig) -> None:
    """F47, F50: by SIGTERM or Ctrl-C, every task of it cancelled, no engine is touched."""
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        rig.start_agent().registered(len(rig.control.registers) + 1)
        pid = rig.ready()["pid"]
        assert rig.agent is not None
        rig.agent.send_signal(number)
        assert rig.ended()[0] == code
        assert "alpha-1/0" in rig.said("engines keep running")
        assert alive(pid)
    assert until(lambda: rig.engine_pids() == [pid], "one engine")


def test_two_engines_two_logs(rig: Rig) -> None:
    rig.start_agent().registered()
    rig.ready(1, "--alias", "one")
    rig.ready(2, "--alias", "two")
    until(lambda: "fake engine one" in rig.engine_log(1), "the first one's words")
    until(lambda: "fake engine two" in rig.engine_log(2), "the second one's")
    os.kill(rig.control.shards["alpha-1/0"]["pid"], signal.SIGKILL)
    rig.control.shard("alpha-1/0", "ready", attempt=2)
    assert "fake engine one" in (rig.state_dir / "logs/alpha-1/0.log.1").read_text()
