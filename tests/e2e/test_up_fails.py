"""An `llmgw up` that never was ready leaves nothing behind that it had started, and all that was there before."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from scripts.fleet import Fleet, wait_for
from tests.e2e.test_box import box, said, up

__all__ = ["box"]
#: Each agent waits for the gateway, so that it fails when all else is there.
SLOW = """
import pathlib, socket, time
if b"llmgw\\0agent\\0" in pathlib.Path("/proc/self/cmdline").read_bytes():
    while True:
        try:
            socket.create_connection(("127.0.0.1", {port})).close()
            break
        except OSError:
            time.sleep(0.05)
    {then}
"""


def slow(box: Fleet, then: str, *more: str) -> subprocess.Popen[bytes]:
    """`up` whose agent comes late; LLMGW_CONFIG names a file that only the agent reads, and refuses."""
    place = {name: url.removeprefix("http://") for name, url in box.urls.items()}
    folder = box.folder / "late"
    folder.mkdir(exist_ok=True)
    port = place["gateway"].rpartition(":")[2]
    (folder / "sitecustomize.py").write_text(SLOW.format(port=port, then=then))
    (folder / "agent.yaml").write_text("nodes: box1\n")
    words = ["--listen", place["control"], "--gateway", place["gateway"], "--agent", place["agent"]]
    words += ["--ports", "{}-{}".format(*box.ports), "--gpus", "none", "--node", box.node, *more]
    env = box.env | {"PYTHONPATH": str(folder), "LLMGW_CONFIG": str(folder / "agent.yaml")}
    with box.log("up").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", "up", *words], env=env, stdout=log, stderr=log
        )
    box.processes["up"] = process
    return process


def answers(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    with suppress(OSError):
        socket.create_connection((host, int(port)), 1.0).close()
        return True
    return False


def test_the_gateway_of_an_up_that_failed_ends_with_it(box: Fleet) -> None:
    process = slow(box, "pass")
    assert process.wait(60) == 1, said(box)
    assert 'unknown key "nodes"' in said(box)
    assert "llmgw: the gateway that this `llmgw up` had started has ended too\n" in said(box)
    wait_for(lambda: not answers(box.urls["gateway"]), "the port is free")


def test_so_it_does_where_somebody_did_not_wait(box: Fleet) -> None:
    process = slow(box, "time.sleep(600)")
    wait_for(lambda: answers(box.urls["gateway"]), "a gateway")
    wait_for(lambda: "started, pid" in said(box), "control started it")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "llmgw: the gateway that this `llmgw up` had started has ended too\n" in said(box)
    assert "have ended before all was ready" in said(box)
    wait_for(lambda: not answers(box.urls["gateway"]), "the port is free")


def test_a_gateway_that_was_there_before_stays(box: Fleet) -> None:
    first = up(box)
    engine = box.ready("alpha")["shards"][0]["pid"]
    gateway = box.gateway_pid()
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert slow(box, "pass").wait(60) == 1, said(box)
    assert "gateway that this" not in said(box)
    assert box.gateway_pid() == gateway
    assert Path(f"/proc/{engine}").exists()
    up(box)
    assert box.gateway_pid() == gateway
    assert box.ready("alpha")["shards"][0]["pid"] == engine


def test_a_port_that_is_taken_is_named_with_the_flag_of_up(box: Fleet) -> None:
    for part, flag in (("agent", "--agent"), ("control", "--listen")):
        host, _, port = box.urls[part].removeprefix("http://").rpartition(":")
        with socket.create_server((host, int(port))):
            process = slow(box, "pass")
            assert process.wait(60) == 1
        lines = said(box).splitlines()
        assert f"cannot listen on {host}:{port}: the port is in use by pid " in lines[0]
        assert lines[1].endswith(f"choose another port: {flag} HOST:PORT")
        assert len(lines) == 2
