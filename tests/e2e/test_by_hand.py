"""An engine that a person started in a shell is found, shown, taken over, kept and stopped; the shell lives (A70, A71).

Real control, agent, gateway, shell and engines, through the command line.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec
import pytest

from scripts.documents.plan import Takeover
from scripts.engine import llama_server
from scripts.fleet import Fleet, start_ticks, wait_for
from scripts.ports import free_port
from tests.e2e.conftest import Make, fake, model
from tests.engines import llama
from tests.engines.shell import shell

Json = dict[str, Any]


def plan(fleet: Fleet) -> Json:
    document: Json = json.loads(fleet.llmgw("adopt", "--dry-run", "-o", "json").stdout)
    return document


def shown(fleet: Fleet, pid: int) -> Json:
    """Its row in the dry run, once its agent has told of it."""
    return wait_for(
        lambda: next((f for f in plan(fleet)["foreign"] if f["pid"] == pid), None), f"pid {pid}"
    )


def settled(make: Make, *flags: str, most: int = 1) -> Fleet:
    one = model(fake("--tokens", "3", "--alias", "${model}", *flags), least=0)
    one["scaling"] = {"min": 0, "max": most, "idle_timeout": "never"}
    fleet = make({"alpha": one})
    fleet.start("control", "agent")
    wait_for(lambda: (fleet.status() or {"settling": 1})["settling"] is None, "settled")
    return fleet


def take(fleet: Fleet, pid: int, *words: str) -> tuple[int, Json]:
    said = fleet.llmgw("adopt", f"{fleet.node}:{pid}", "--as", "alpha/main", "-o", "json", *words)
    assert said.stdout, said.stderr
    document = json.loads(said.stdout)
    msgspec.convert(document, Takeover)
    return said.returncode, document


def test_a70_a71_found_taken_over_kept_and_stopped_and_the_shell_lives(make: Make) -> None:
    fleet = settled(make)
    with shell(fleet.folder) as person:
        pid, port = person.engine("--tokens", "3", "--alias", "mine")
        row = shown(fleet, pid)
        line = f"llmgw adopt box1:{pid} --as alpha/main"
        assert (row["port"], row["matches"], row["adopt"]) == (port, "alpha/main", line)
        assert row["differs"] == []
        said = fleet.llmgw("adopt", "--dry-run")
        assert said.returncode == 0, said.stdout  # a stranger is no difference
        assert f"\ntake over: {line}\n" in said.stdout
        assert "matches main" in next(x for x in said.stdout.splitlines() if f" pid {pid} " in x)
        code, document = take(fleet, pid, "--dry-run")
        assert (code, document["taken"]) == (0, False)
        assert fleet.engines() == {}
        code, document = take(fleet, pid)
        assert (code, document["taken"], document["state"]) == (0, True, "ready"), document
        fleet.served("alpha")
        assert start_ticks(pid)
        assert all(f["pid"] != pid for f in plan(fleet)["foreign"])
        again, document = take(fleet, pid)
        assert (again, document["already"]) == (0, True)

        for part in ("agent", "control"):
            old = fleet.life(part)
            fleet.kill(part)
            fleet.start(part)
            fleet.back(part, old)
        there = fleet.ready("alpha")["shards"][0]
        assert (there["pid"], there["port"], there["state"]) == (pid, port, "ready")
        body = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}]}
        url = f"{fleet.urls['gateway']}/v1/chat/completions"
        answer = fleet.http.post(url, json=body)
        assert answer.status_code == 200, answer.text
        name = there["shard"]
        logs = fleet.http.get(f"{fleet.urls['agent']}/v1/logs/{name}").text
        assert f"pid {pid} was started by hand" in logs
        assert "engine.log" in logs

        said = fleet.llmgw("stop", "alpha", "--yes")
        assert said.returncode == 0, said.stderr
        wait_for(lambda: not start_ticks(pid), "the engine's end")
        wait_for(lambda: not fleet.replicas("alpha"), "nothing of it left")
        assert person.says("echo alive") == "alive"


def test_a71_what_differs_is_refused_two_calls_are_one_and_one_too_many_is_none(make: Make) -> None:
    fleet = settled(make)
    with shell(fleet.folder) as person:
        pid, _ = person.engine("--tokens", "3")
        other, _ = person.engine("--tokens", "3")
        third, _ = person.engine("--tokens", "4", "--log-flood", "10")
        shown(fleet, third)
        differs(fleet, third)
        assert fleet.engines() == {}
        assert not fleet.replicas("alpha")
        wrong_words(fleet, pid)
        answers: list[tuple[int, Json]] = []
        calls = [
            threading.Thread(target=lambda: answers.append(take(fleet, pid))) for _ in range(2)
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
        assert [code for code, _ in answers] == [0, 0]
        assert len({document["shard"] for _, document in answers}) == 1
        assert len(fleet.replicas("alpha")) == 1
        row = shown(fleet, other)
        assert (row["matches"], row["adopt"]) == ("alpha/main", None), "it would only be refused"
        assert "alpha has 1 of max 1 replicas" in row["in_the_way"]
        code, document = take(fleet, other)
        assert (code, document["taken"]) == (1, False)
        assert "alpha has 1 of max 1 replicas" in document["why"]
        assert all(start_ticks(p) for p in (pid, other, third))


def differs(fleet: Fleet, pid: int) -> None:
    """In the dry run and in the refusal, each fact by itself."""
    row = shown(fleet, pid)
    assert (row["matches"], row["nearest"], row["adopt"]) == (None, "alpha/main", None)
    table = fleet.llmgw("adopt", "--dry-run").stdout
    assert "is not quite alpha/main: --tokens 4 instead of 3; --log-flood 10" in table
    said = fleet.llmgw("adopt", f"box1:{pid}", "--as", "alpha/main")
    assert said.returncode == 1, said.stderr
    lines = [" ".join(x.split()) for x in said.stdout.splitlines()]
    assert "--tokens 3 4 ! differs" in lines
    assert "--log-flood nothing 10 ! differs" in lines
    assert "hint: stop it and let llmgw start it" in said.stderr


def wrong_words(fleet: Fleet, pid: int) -> None:
    for words, code in (
        ((f"box9:{pid}", "--as", "alpha/main"), 1),
        ((f"box1:{pid}", "--as", "beta"), 1),
        ((f"box1:{pid}", "--as", "alpha/other"), 1),
        (("box1", "--as", "alpha"), 2),
        ((f"box1:{pid}",), 2),
    ):
        wrong = fleet.llmgw("adopt", *words)
        assert wrong.returncode == code, (words, wrong.stdout, wrong.stderr)
        assert "hint:" in wrong.stderr


@pytest.mark.e2e
def test_a71_a_real_llama_server_as_the_built_in_engine(make: Make) -> None:
    """As people type it: short names, a relative path, no name of its own; not on the PATH of the agent either."""
    server, weights = llama.usable(llama_server()), llama.model("hand")
    one: Json = {
        "name": "main",
        "engine": "llama.cpp",
        "weights": str(weights),
        "host_memory": "64MiB",
    }
    one["args"] = ["--ctx-size", "2048", "--parallel", "2", "--threads", "1"]
    scaling = {"min": 0, "max": 1, "idle_timeout": "never"}
    fleet = make({"alpha": {"scaling": scaling, "profiles": [one]}})
    fleet.start("control", "agent")
    wait_for(lambda: (fleet.status() or {"settling": 1})["settling"] is None, "settled")
    with shell(weights.parent) as person:
        flags = ["-t", "1", "-np", "2", "-c", "2048", "--port", str(free_port())]
        pid = person.runs([*server, "-m", weights.name, *flags])
        assert shown(fleet, pid)["adopt"] == f"llmgw adopt box1:{pid} --as alpha/main"
        code, document = take(fleet, pid)
        assert (code, document["state"]) == (0, "ready"), document
        fleet.served("alpha")
        body = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        answer = fleet.http.post(f"{fleet.urls['gateway']}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert "hello from hand" in answer.json()["choices"][0]["message"]["content"]
        assert fleet.llmgw("stop", "alpha", "--yes").returncode == 0
        wait_for(lambda: not start_ticks(pid), "the engine's end")
        assert person.says("echo alive") == "alive"
