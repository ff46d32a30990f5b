"""`logs`, `events` and `wait` on a real fleet: whole, once, over kills; without control the local agent answers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from scripts.fleet import Fleet, wait_for
from tests.e2e.conftest import Make, fake, model


class Follower:
    """A verb that goes on; what it has said so far."""

    def __init__(self, fleet: Fleet, *words: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llmgw", *words], env=fleet.env, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def end(self) -> None:
        self.process.kill()
        self._reader.join()
        with self.process:
            pass


@pytest.fixture
def fleet(make: Make) -> Fleet:
    one = make({"alpha": model(fake("--alias", "alpha"))})
    one.start("control", "agent")
    one.ready("alpha")
    return one


def ask(fleet: Fleet) -> None:
    chat = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}]}
    url = f"{fleet.urls['gateway']}/v1/chat/completions"
    assert fleet.http.post(url, json=chat).status_code == 200


def test_a_log_is_shown_by_model_replica_and_rank_also_without_control(fleet: Fleet) -> None:
    replica = fleet.ready("alpha")["replica"]
    whole = fleet.llmgw("logs", f"{replica}/0")
    assert (whole.returncode, whole.stderr) == (0, "")
    assert whole.stdout.strip()
    assert fleet.llmgw("logs", replica).stdout == whole.stdout
    assert fleet.llmgw("logs", "alpha").stdout == whole.stdout
    short = fleet.llmgw("logs", "alpha", "--tail", "20")
    assert whole.stdout.endswith(short.stdout)
    none = fleet.llmgw("logs", "alpha", "--previous")
    assert none.returncode == 1
    assert "has no attempt before this one" in none.stderr
    fleet.kill("control")
    alone = fleet.llmgw("logs", replica)
    assert (alone.returncode, alone.stdout) == (0, whole.stdout)


def test_a_log_that_nobody_has_is_said_with_what_there_is(fleet: Fleet) -> None:
    for name in ("nobody", "alpha-xyz/0", "../x/0", "a/b/0"):
        said = fleet.llmgw("logs", name)
        assert said.returncode == 1, name
        assert said.stderr.startswith("llmgw: "), name


def test_events_go_on_over_a_kill_of_control_each_once(fleet: Fleet) -> None:
    follower = Follower(fleet, "events", "-f", "-o", "json")
    try:
        wait_for(lambda: len(follower.lines) > 1, "the events so far")
        fleet.kill("control")
        fleet.start("control")
        replica = fleet.ready("alpha")["replica"]
        fleet.llmgw("stop", replica, "--yes")
        wait_for(lambda: any("stop" in e for e in follower.lines), "the stop among the events")
    finally:
        follower.end()
    found = [json.loads(line) for line in follower.lines]
    ids = [e["id"] for e in found]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    document = json.loads(fleet.llmgw("events", "-o", "json").stdout)
    assert document["schema"] == "llmgw.events/1"
    table = fleet.llmgw("events", "-n", "2").stdout.splitlines()
    assert table[0].split() == ["AT", "KIND", "ABOUT", "NODE", "WHY"]
    assert len(table) == 3


def test_a_followed_log_goes_on_over_a_kill_of_the_agent_without_a_line_twice(make: Make) -> None:
    script = 'for i in $(seq 3000); do echo line $i; sleep 0.05; done & exec "$0" "$@"'
    fleet = make(
        {"alpha": model(["sh", "-c", script.replace("$", "$$"), *fake("--alias", "alpha")])}
    )
    fleet.start("control", "agent")
    fleet.ready("alpha")
    follower = Follower(fleet, "logs", "alpha", "-f")
    try:
        wait_for(lambda: "line 5" in follower.lines, "the log")
        fleet.kill("agent")
        fleet.start("agent")
        so_far = len(follower.lines)
        wait_for(lambda: len(follower.lines) > so_far + 5, "the log after the kill")
    finally:
        follower.end()
    numbers = [int(line.split()[1]) for line in follower.lines if line.startswith("line ")]
    assert numbers == list(range(1, len(numbers) + 1))


def test_wait_until_ready_until_stopped_and_not_in_time(fleet: Fleet) -> None:
    assert fleet.llmgw("wait", "alpha").returncode == 0
    late = fleet.llmgw("wait", "alpha", "--for", "stopped", "--timeout", "1s", "-o", "json")
    assert late.returncode == 1
    assert json.loads(late.stdout) == {
        "schema": "llmgw.wait/1", "name": "alpha", "for": "stopped", "reached": False,
        "state": f"{fleet.ready('alpha')['replica']} is ready",
    }  # fmt: skip
    assert "alpha is not stopped after 1s" in late.stderr
    nobody = fleet.llmgw("wait", "nobody")
    assert nobody.returncode == 1
    assert "known: alpha" in nobody.stderr
    assert fleet.llmgw("wait", "alpha", "--timeout", "never").returncode == 2
    fleet.kill("control")
    assert fleet.llmgw("wait", "alpha", "--timeout", "1s").returncode == 3


def test_wait_ends_at_once_for_what_was_given_up(make: Make) -> None:
    one = model(["sh", "-c", "exit 3"])
    one["profiles"][0]["restart"] = {"max": 1, "window": "10m", "backoff": "1s"}
    fleet = make({"bad": one})
    fleet.start("control", "agent")
    wait_for(fleet.status, "control")
    said = fleet.llmgw("wait", "bad", "--timeout", "60s")
    assert said.returncode == 1
    assert "gave up" in said.stderr
