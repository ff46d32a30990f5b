"""The later part of a day in the life (test_day_in_the_life.py): what changes, what fails, what dies, what is kept."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

from scripts.fleet import wait_for
from tests.agent.cards import GIB
from tests.beds import needs
from tests.e2e.conftest import Make, fake, model
from tests.e2e.day import Day, chat, pid_of, second_box, tidy, write
from tests.engines.running import FAKE

pytestmark = needs("bash", "curl", "jq", root=False)


def test_catalogs_that_change(make: Make) -> None:
    """13: pinned without a restart. 14: a flag. 20: another build."""
    alpha = model(fake("--alias", "alpha", "-c", "32768"))
    beta = model(fake("--alias", "beta"), least=0)
    fleet = make({"alpha": alpha, "beta": beta})
    fleet.start("control", "agent")
    pid = pid_of(fleet, "alpha")
    day = Day(fleet, "alpha", "beta", "broken")
    new = fleet.folder / "new.yaml"
    session = day.task(13, "Pin the voice model")
    beta["scaling"]["min"] = 1
    write(new, alpha=alpha, beta=beta)
    session.run("llmgw adopt --dry-run --catalog new.yaml")
    session.run("llmgw catalog apply new.yaml")
    fleet.ready("beta")
    assert pid_of(fleet, "alpha") == pid
    session.once("llmgw status beta", "never")
    day.check(session)

    session = day.task(14, "Try a bigger context")
    alpha["profiles"][0]["command"][-1] = "65536"
    write(new, alpha=alpha, beta=beta)
    session.run("llmgw adopt --dry-run --catalog new.yaml")
    day.check(session)

    another_build(day, new, alpha, beta)


def another_build(day: Day, new: Path, alpha: dict[str, Any], beta: dict[str, Any]) -> None:
    fleet = day.fleet
    session = day.task(20, "Update llama.cpp")
    for build in ("b8933", "b9402"):
        program = fleet.folder / build / "llama-server"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.join(FAKE)} "$@"\n')
        program.chmod(0o755)
    alpha["profiles"][0]["command"] = [
        "b8933/llama-server",
        "--port",
        "${port}",
        "--alias",
        "alpha",
    ]
    alpha["profiles"][0]["command"][0] = str(fleet.folder / "b8933" / "llama-server")
    write(new, alpha=alpha, beta=beta)
    session.run("llmgw catalog apply new.yaml --yes >/dev/null")
    session.once("llmgw status alpha", "ready  -     never")
    tidy(fleet)
    alpha["profiles"][0]["command"][0] = str(fleet.folder / "b9402" / "llama-server")
    write(new, alpha=alpha, beta=beta)
    kept = pid_of(fleet, "beta")
    session.run("llmgw adopt --dry-run --catalog new.yaml")
    session.run("llmgw catalog apply new.yaml --yes | tail -1")
    wait_for(lambda: not any(r["drift"] for r in (fleet.status() or {})["replicas"]), "the roll")
    session.once("llmgw adopt --dry-run", "2 adopted.  Restart would disturb no engine")
    session.run(
        "tail -1 catalog.yaml.bak >/dev/null && echo the old catalog is kept: catalog.yaml.bak"
    )
    assert pid_of(fleet, "beta") == kept
    day.check(session)


def test_what_is_wrong_and_who_hears_of_it(make: Make) -> None:
    """16: why it failed. 17: for scripts. 18: what cron hears. 19: a GPU for gaming."""
    broken = model(
        ["sh", "-c", "echo 'ggml_cuda: cudaMalloc failed: out of memory' >&2; exit 3"], least=0
    )
    broken["profiles"][0]["restart"] = {"max": 2, "window": "10m", "backoff": "1s"}
    alpha = model(fake("--alias", "alpha"), gpus=1, gpu_memory="1GiB")
    fleet = make({"alpha": alpha, "broken": broken})
    (fleet.folder / "gpus.json").write_text(json.dumps([
        {"uuid": "GPU-0", "index": 0, "name": "NVIDIA GeForce RTX 3090", "memory": 24 * GIB, "memory_used": 0}
    ]))  # fmt: skip
    fleet.more["agent"] = ["--gpus", str(fleet.folder / "gpus.json")]
    fleet.start("control", "agent")
    fleet.served("alpha")
    day = Day(fleet, "alpha", "broken")
    cron = day.task(18, "Cron check")
    cron.run("llmgw status --check")

    session = day.task(16, "Why did it fail")
    session.run("llmgw wake broken")
    session.once("llmgw status broken", "failed")
    session.once("llmgw events | grep -o 'broken-.* is failed.*'", "failed")
    replica = fleet.replicas("broken", "failed")[0]["replica"]
    session.run(f"llmgw logs {replica} --previous")
    day.check(session)

    session = day.task(17, "Script it")
    session.run("llmgw status -o json | jq -r '.models[] | select(.state != \"loaded\") | .name'")
    session.run(
        "llmgw status -o json | jq -r '.replicas[] | select(.state == \"ready\") | .replica'"
    )
    session.run("llmgw status nobody -o json | jq .")
    day.check(session)

    cron.run("llmgw status --check")
    session = day.task(19, "Free a GPU for gaming")
    session.run("llmgw drain box1/0")
    session.run("llmgw drain box1/0 --yes --wait")
    session.once("llmgw status box1", "it is free")
    session.run(f"{chat('alpha')}; jq -r .error.message answer")
    session.run("llmgw undrain box1/0")
    session.once("llmgw status alpha", "ready ")
    day.check(session)

    fleet.kill("control")
    cron.run("llmgw status --check")
    fleet.kill("agent")
    cron.run("llmgw status --check")
    day.check(cron)


def test_the_bad_night(make: Make) -> None:
    """21: the agent is upgraded. 23: control dies. 25: all at once, with a corrupt state file."""
    fleet = make({"alpha": model(fake("--alias", "alpha"))})
    fleet.settle_timeout = "3s"  # without its inventory control expects nobody, and waits that long
    fleet.start("control", "agent")
    pid = pid_of(fleet, "alpha")
    day = Day(fleet, "alpha")
    session = day.task(21, "Update llmgw itself")
    session.run("llmgw adopt --dry-run; echo exit code of the dry run: $?")
    old = fleet.life("agent")
    session.tell("systemctl restart llmgw-agent")
    agent = fleet.processes.pop("agent")
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(60) == 0
    fleet.start("agent")
    fleet.back("agent", old)
    session.once("llmgw status", "box1  ready")
    assert pid_of(fleet, "alpha") == pid
    session.tell("the same pid as before")
    day.check(session)

    session = day.task(23, "The control box dies")
    fleet.kill("control")
    session.run("llmgw status")
    fleet.inventory.unlink()
    fleet.start("control")
    assert pid_of(fleet, "alpha") == pid
    session.once("llmgw status", "alpha-.* ready")
    assert list(fleet.engines()) == [pid]
    session.tell("the same pid as before, and no other")
    day.check(session)

    disaster(day, pid)


def disaster(day: Day, pid: int) -> None:
    fleet = day.fleet
    session = day.task(25, "Disaster: kill -9 of the agent, a corrupt state file")
    fleet.kill("agent")
    (record,) = (fleet.folder / "agent").glob("**/*alpha*.json")
    record.write_bytes(b"\0\0\0")
    session.tell("kill -9 of the agent; its record of alpha is three zero bytes")
    fleet.start("agent")
    wait_for(lambda: fleet.life("agent"), "the agent")
    assert pid_of(fleet, "alpha") == pid
    session.run("grep -o -E 'warning.*|error .*' agent.log | grep -v reached")
    session.once("llmgw adopt --dry-run", "= adopt")
    assert list(fleet.engines()) == [pid]
    session.tell("the same pid as before, and no other")
    day.check(session)


def test_a_model_over_two_boxes(make: Make) -> None:
    """15: both come up together; when one dies both start anew."""
    fleet = make({"deep": model(fake("--name", "deep"), nodes=2)})
    second_box(fleet)
    fleet.start("control", "agent", "box2")
    fleet.ready("deep")
    day = Day(fleet, "deep")
    session = day.task(15, "Run a model over two boxes")
    session.run("llmgw status deep")
    first = {shard: pid for pid, shard in fleet.engines().items()}
    os.kill(next(pid for shard, pid in first.items() if shard.endswith("/1")), signal.SIGKILL)
    session.tell("kill -9 of rank 1")
    wait_for(
        lambda: not set(first.values()) & set(fleet.engines()) and fleet.replicas("deep"),
        "a new group",
    )
    tidy(fleet)
    session.once("llmgw status deep", "ready")
    day.check(session)
