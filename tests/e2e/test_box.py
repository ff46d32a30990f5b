"""`llmgw up` and `down`: one box, started and ended as a person does it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scripts.fleet import Fleet, start_ticks, wait_for
from scripts.ports import free_port
from tests.e2e.conftest import Make, fake, model


@pytest.fixture
def box(make: Make) -> Iterator[Fleet]:
    """The fleet's folder and addresses; `up` starts its parts itself."""
    fleet = make({"alpha": model(fake("--alias", "alpha"))})
    yield fleet
    up = fleet.processes.get("up")
    if up and up.poll() is None:
        up.send_signal(signal.SIGTERM)
        up.wait(60)


def up(fleet: Fleet) -> "subprocess.Popen[bytes]":
    place = {name: url.removeprefix("http://") for name, url in fleet.urls.items()}
    words = ["--listen", place["control"], "--gateway", place["gateway"], "--agent", place["agent"]]
    words += ["--ports", "{}-{}".format(*fleet.ports), "--gpus", "none", "--node", fleet.node]
    with fleet.log("up").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", "up", *words], env=fleet.env, stdout=log, stderr=log
        )
    fleet.processes["up"] = process
    wait_for(lambda: "llmgw: ready: " in said(fleet), "up")
    return process


def said(fleet: Fleet) -> str:
    return fleet.log("up").read_text()


def test_ctrl_c_leaves_the_engines_and_up_finds_them_again(box: Fleet) -> None:
    first = up(box)
    pid = box.ready("alpha")["shards"][0]["pid"]
    ticks = start_ticks(pid)
    box.served("alpha")
    body = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(
        f"{box.urls['gateway']}/v1/chat/completions", json=body, trust_env=False, timeout=30
    )
    assert answer.json()["choices"][0]["message"]["content"] == " hello from alpha."
    gateway = box.gateway_pid()

    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert "1 engine (alpha-" in said(box)
    assert "and the gateway keep running" in said(box)
    assert "Traceback" not in said(box)
    assert start_ticks(pid) == ticks

    second = up(box)
    assert box.ready("alpha")["shards"][0]["pid"] == pid
    assert box.gateway_pid() == gateway

    down = box.llmgw("down", "--engines")
    assert (down.returncode, down.stdout) == (2, "")
    assert f"alpha-{box.replicas('alpha')[0]['replica'][6:]}/0 on box1 (pid {pid})" in down.stderr
    assert "hint: add --yes" in down.stderr

    down = box.llmgw("down", "--engines", "--yes")
    assert down.returncode == 0, down.stderr
    assert second.wait(60) == 0
    assert not box.engines()
    assert box.gateway_pid() is None
    assert "ended by `llmgw down`" in said(box)


def test_a_part_that_dies_comes_back(box: Fleet) -> None:
    process = up(box)
    box.ready("alpha")
    lives = {part: box.life(part) for part in ("control", "agent", "gateway")}
    for part, pid in children(process.pid).items():
        box.kill_pid(pid)
        box.back(part, lives[part])
    assert "the control died (signal 9); starting it again" in said(box)
    assert "the agent died (signal 9); starting it again" in said(box)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_with_an_operators_token_its_own_agent_is_let_in(box: Fleet) -> None:
    """Made while it runs, of which control hears when it is started again: the node stays, and so does its engine."""
    first = up(box)
    pid = box.ready("alpha")["shards"][0]["pid"]
    folder = Path(box.env["LLMGW_STATE_DIR"])
    assert not (folder / "agent" / "node-token").exists(), "nobody is asked for one"
    made = box.llmgw("token", "new", "--operator")
    assert made.returncode == 0, made.stderr
    box.kill_pid(children(first.pid)["control"])
    box.http.headers["authorization"] = f"Bearer {Path(made.stdout.strip()).read_text().strip()}"
    wait_for(lambda: said(box).count("registered") >= 2, "the agent is let in")
    assert httpx.get(f"{box.urls['control']}/api/v1/status").status_code == 401
    box.served("alpha")
    assert box.ready("alpha")["shards"][0]["pid"] == pid
    file = folder / "agent" / "node-token"
    assert file.stat().st_mode & 0o777 == 0o600
    word = file.read_text()
    assert [(t["name"], t["node"]) for t in tokens(box)] == [("up", box.node)]

    # Over a restart of both it is the same; revoked, and started again, it is another.
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert "1 engine (alpha-" in said(box), "it asks as an operator"
    second = up(box)
    assert box.ready("alpha")["shards"][0]["pid"] == pid
    assert file.read_text() == word
    assert box.llmgw("token", "revoke", "up", "--yes").returncode == 0
    wait_for(lambda: "the token is wrong" in said(box), "refused")
    warned = box.status()
    assert warned is not None
    assert any(f"node {box.node} at 127.0.0.1 is refused" in w for w in warned["warnings"])
    second.send_signal(signal.SIGTERM)
    second.wait(60)
    up(box)
    assert box.ready("alpha")["shards"][0]["pid"] == pid
    assert file.read_text() != word


def tokens(box: Fleet) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(box.llmgw("token", "list", "-o", "json").stdout)[
        "tokens"
    ]
    return found


def test_a_second_up_refuses(box: Fleet) -> None:
    up(box)
    place = box.urls["control"].removeprefix("http://")
    again = box.llmgw("up", "--listen", place)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith(f"llmgw: a control answers at {place} already\nhint: ")


def test_f47_what_an_up_that_was_killed_left_behind_is_started_anew(box: Fleet) -> None:
    """`kill -9` of `up` ends neither part: the next one ends both, and nothing they care for."""
    up(box)
    engine = box.ready("alpha")["shards"][0]["pid"]
    gateway = box.gateway_pid()
    left = children(box.processes["up"].pid)
    box.kill("up")
    assert all(map(start_ticks, left.values()))
    low, high = box.ports
    doctor = box.llmgw("doctor").stdout
    assert f"ports {low}-{high}: 1 listened on by our engines" in doctor, "the agent's own range"

    up(box)
    assert not any(map(start_ticks, left.values()))
    for part, pid in left.items():
        assert f"the {part} (pid {pid}) of an `llmgw up` that was killed still runs" in said(box)
    assert box.ready("alpha")["shards"][0]["pid"] == engine
    assert box.gateway_pid() == gateway


def test_an_agent_of_another_state_dir_is_not_ours_to_end(box: Fleet, tmp_path: Path) -> None:
    box.start("agent")
    wait_for(lambda: box.life("agent"), "the agent")
    pid = box.processes["agent"].pid
    place = {name: url.removeprefix("http://") for name, url in box.urls.items()}
    words = ["--listen", place["control"], "--gateway", place["gateway"], "--agent", place["agent"]]
    refused = box.llmgw("up", *words, "--state-dir", tmp_path / "other")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"llmgw: an agent answers at {place['agent']} already\n")
    assert f"`kill {pid}` ends it and leaves its engines" in refused.stderr
    assert start_ticks(pid)


def test_the_agent_of_another_up_is_ended_with_it(box: Fleet, tmp_path: Path) -> None:
    """Killed, it would come back: its `up` starts it again."""
    first = up(box)
    place = box.urls["agent"].removeprefix("http://")
    words = ["--listen", f"127.0.0.1:{free_port()}", "--gateway", f"127.0.0.1:{free_port()}"]
    refused = box.llmgw("up", *words, "--agent", place, "--state-dir", tmp_path / "other")
    assert refused.returncode == 1
    pid, down = children(first.pid)["agent"], f"llmgw down --control {box.urls['control']}"
    assert (
        f"hint: it is pid {pid}, the agent of another `llmgw up`: `{down}` ends that `up` and leaves its engines"
    ) in refused.stderr
    assert start_ticks(pid)


def test_a_folder_in_which_nothing_runs_ends_no_other_control(box: Fleet, tmp_path: Path) -> None:
    first = up(box)
    control = children(first.pid)["control"]
    ours = Path(box.env["LLMGW_STATE_DIR"]) / "control"
    refused = box.llmgw("down", "--state-dir", tmp_path / "empty")
    assert refused.returncode == 1
    place = box.urls["control"].removeprefix("http://")
    assert refused.stderr == (
        f"llmgw: control at {place} keeps its state in {ours}, not {tmp_path / 'empty' / 'control'}\n"
        f"hint: name it with --control {box.urls['control']}, or drop --state-dir\n"
    )
    assert start_ticks(control)
    down = box.llmgw("down", "--state-dir", ours.parent)
    assert down.returncode == 0, down.stderr
    assert first.wait(60) == 0


def test_down_is_over_when_it_says_so_and_up_follows_at_once(box: Fleet) -> None:
    first = up(box)
    control = children(first.pid)["control"]
    down = box.llmgw("down")
    assert down.returncode == 0, down.stderr
    assert not start_ticks(control)
    up(box)  # while the agent of the first may still be on its way out
    assert first.wait(60) == 0


def test_down_without_control_ends_the_gateway(box: Fleet) -> None:
    process = up(box)
    engine = box.ready("alpha")["shards"][0]["pid"]
    process.send_signal(signal.SIGINT)
    process.wait(60)
    pid = box.gateway_pid()
    assert pid
    assert box.llmgw("down", "--engines", "--yes").returncode == 3
    down = box.llmgw("down")
    assert down.returncode == 0, down.stderr
    assert f"the gateway (pid {pid}) was told to end" in down.stderr
    assert not start_ticks(pid)
    assert start_ticks(engine)


def children(pid: int) -> dict[str, int]:
    """Control and agent of an `up`, by the verb in their command line."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = {}
    for child in listed:
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        found[words[words.index("llmgw") + 1]] = int(child)
    return found
