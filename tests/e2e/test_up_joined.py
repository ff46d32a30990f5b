"""`llmgw up`, and a second agent that joined its control: whatever is done to `up`, that one comes back by itself."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

from scripts.fleet import Fleet, start_ticks, wait_for
from scripts.ports import free_port, free_range
from tests.e2e.test_box import box, tokens, up

__all__ = ["box"]


def join(box: Fleet, *words: str) -> subprocess.Popen[bytes]:
    """As `llmgw token` prints it, by a shell; later without a word, as its state dir has it."""
    port, (low, high) = free_port(), free_range()
    env = {k: v for k, v in box.env.items() if k not in ("LLMGW_CONTROL", "LLMGW_AGENT")}
    env |= {"LLMGW_STATE_DIR": str(box.folder / "two")}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    given = {"LLMGW_NODE": "box2", "LLMGW_GPUS": "none", "LLMGW_PORTS": f"{low}-{high}"}
    given |= {"LLMGW_ADDRESS": "127.0.0.2", "LLMGW_LISTEN": f"127.0.0.2:{port}"}
    env = env | given if words else {name: word for name, word in env.items() if name not in given}
    line = words[0] if words else "llmgw agent"
    command = f"exec env {line}" if words else f"exec {shlex.quote(sys.executable)} -m {line}"
    with box.log("two").open("ab") as log:
        process = subprocess.Popen(
            ["sh", "-c", command], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    box.processes["two"] = process
    return process


def back(box: Fleet, times: int) -> None:
    """It registered once more, and its node is there."""
    wait_for(lambda: box.log("two").read_text().count("registered") >= times, "registered")
    wait_for(lambda: states(box) == {box.node: "ready", "box2": "ready"}, "both nodes")


def states(box: Fleet) -> dict[str, str]:
    return {n["node"]: n["state"] for n in (box.status() or {"nodes": []})["nodes"]}


def test_a_second_agent_comes_back_to_the_next_up_by_itself(box: Fleet) -> None:
    made = box.llmgw("token", "new", "--operator")
    assert made.returncode == 0, made.stderr
    box.http.headers["authorization"] = f"Bearer {Path(made.stdout.strip()).read_text().strip()}"
    up(box)
    engine = box.ready("alpha")["shards"][0]["pid"]
    joined = join(box, box.llmgw("token").stdout.strip())
    back(box, 1)
    bound = tokens(box)

    box.kill("up")
    second = up(box)
    back(box, 2)
    assert tokens(box) == bound

    assert box.llmgw("down").returncode == 0
    assert second.wait(60) == 0
    up(box)
    back(box, 3)
    assert tokens(box) == bound

    # Its own restart needs nothing but what it kept.
    joined.send_signal(signal.SIGTERM)
    joined.wait(60)
    join(box)
    back(box, 4)
    assert box.ready("alpha")["shards"][0]["pid"] == engine
    assert start_ticks(engine)
