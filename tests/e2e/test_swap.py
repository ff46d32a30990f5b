"""Two models that do not fit together, with real engines: swapped on demand, shown before, never while in use (A64)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.fleet import Fleet, wait_for
from tests.e2e.conftest import Make, counted, model, tiny

pytestmark = pytest.mark.e2e
#: Alone it takes every core of the box.
ALL = float(os.cpu_count() or 1)
#: So many at most until one comes to the point at which somebody is to die.
SWAPS = 6


def sleepy(name: str, **scaling: Any) -> dict[str, Any]:
    found = model(tiny(name), least=0, cpu_cores=ALL)
    found["scaling"] |= {"min_up": "0s", "idle_timeout": "1h"} | scaling
    return found


def ask(fleet: Fleet, name: str, text: str = "hi", **more: Any) -> httpx.Response:
    body = {"model": name, "messages": [{"role": "user", "content": text}]} | more
    return httpx.post(
        f"{fleet.urls['gateway']}/v1/chat/completions", json=body, timeout=60, trust_env=False
    )


def answer(fleet: Fleet, name: str) -> str:
    said = ask(fleet, name)
    assert said.status_code == httpx.codes.OK, said.text
    return str(said.json()["choices"][0]["message"]["content"])


def served(fleet: Fleet) -> None:
    fleet.start("control", "agent")

    def there() -> bool:
        status = fleet.status()
        nodes = [n for n in (status or {"nodes": []})["nodes"] if n["state"] == "ready"]
        return bool(nodes) and fleet.gateway_pid() is not None

    wait_for(there, "a node and a gateway")


def test_a64_a_request_swaps_what_is_idle_and_a_dry_run_says_so_before(make: Make) -> None:
    huge = model(tiny("huge"), least=0, cpu_cores=ALL + 1)
    fleet = make({"alpha": sleepy("alpha"), "beta": sleepy("beta"), "huge": huge})
    served(fleet)
    assert answer(fleet, "alpha") == " hello from alpha."
    # Its last byte is told to control within a second; until then it is taken for busy.
    row = wait_for(lambda: _would_go(fleet, "beta"), "an idle alpha")
    assert row["model"] == "alpha"
    assert row["why"].startswith("makes room for beta; idle for ")
    (before,) = fleet.engines().values()
    assert before.startswith("alpha-"), "the dry run stopped nothing"

    assert answer(fleet, "beta") == " hello from beta."
    (after,) = fleet.engines().values()
    assert after.startswith("beta-")
    events = fleet.http.get(f"{fleet.urls['control']}/api/v1/events?after=0").json()["events"]
    (drain,) = [e for e in events if e["kind"] == "drain"]
    assert (drain["model"], drain["reason"]) == ("alpha", "evict")

    began = time.monotonic()
    refused = ask(fleet, "huge")
    assert time.monotonic() - began < 60, "wait_timeout is five minutes"
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_no_room")
    assert f"{ALL:g} cores free, {ALL + 1:g} needed" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "30"
    said = fleet.llmgw("wake", "huge")
    assert said.returncode == 1
    assert said.stdout.startswith("huge has no room: ")


def _would_go(fleet: Fleet, name: str) -> dict[str, Any] | None:
    said = fleet.llmgw("wake", name, "--dry-run", "-o", "json")
    assert said.returncode == 0, said.stderr
    rows = [r for r in json.loads(said.stdout)["evicts"] if r["when"] == "now"]
    return rows[0] if rows else None


def test_a63_a64_a_busy_one_yields_and_its_answer_is_whole(make: Make) -> None:
    fleet = make({"alpha": sleepy("alpha", yield_after="2s"), "beta": sleepy("beta")})
    served(fleet)
    answer(fleet, "alpha")
    long: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: long.append(ask(fleet, "alpha", "loop", max_tokens=900))
    )
    thread.start()
    wait_for(lambda: any(r["in_flight"] for r in fleet.replicas("alpha")), "a request on alpha")
    assert answer(fleet, "beta") == " hello from beta."
    thread.join(60)
    assert long[0].json()["usage"]["completion_tokens"] == 900
    assert answer(fleet, "alpha") == " hello from alpha."


@pytest.mark.parametrize(
    ("part", "point"),
    [
        ("agent", "start-kept"),
        ("agent", "start-due"),
        ("agent", "before-WriteRecord-intent:2"),
        ("agent", "after-WriteRecord-intent:2"),
        ("agent", "after-Spawn:2"),
        ("control", "after_send_stop"),
        ("control", "after_send_start:2"),
    ],
)
def test_a64_f1_f43_whoever_dies_in_a_swap_nothing_is_started_twice(
    make: Make, tmp_path: Path, part: str, point: str
) -> None:
    """The start goes out with the stop, and is kept until that is over: a killed agent's, or control's, is as lost."""
    models = {name: sleepy(name) for name in ("alpha", "beta")}
    for name, found in models.items():
        (profile,) = found["profiles"]
        profile["command"] = counted(profile["command"], tmp_path / name)
        # A new control knows of no gateway what it serves: that alone would make the drain wait for a minute.
        profile["drain_timeout"] = "1s"
    fleet = make(models)
    with fleet.log(part).open("ab") as log:
        fleet.processes[part] = subprocess.Popen(
            [sys.executable, "-m", "llmgw", *fleet.words(part)],
            env=fleet.env | {"LLMGW_CRASH_AT": point},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    fleet.start("agent" if part == "control" else "control")
    wait_for(lambda: fleet.gateway_pid() and (fleet.status() or {"nodes": []})["nodes"], "a fleet")
    assert answer(fleet, "alpha") == " hello from alpha."
    died, asked = fleet.processes.pop(part), ["alpha"]
    # A slow box may see the end before the start has come, and the point is not met: then the next swap is the one.
    said: list[str] = []
    client = threading.Thread()
    while died.poll() is None and len(asked) < SWAPS:
        one = "alpha" if asked[-1] == "beta" else "beta"
        wait_for(lambda one=one: _would_go(fleet, one), "an idle one")  # type: ignore[misc]
        asked.append(one)
        said = []
        client = threading.Thread(target=lambda one=one, said=said: said.append(answer(fleet, one)))
        client.start()
        wait_for(lambda said=said: died.poll() is not None or said, "a death or an answer", 120)  # type: ignore[misc]
    assert died.poll() == -signal.SIGKILL, fleet.log(part).read_text()[-2000:]
    fleet.start(part)
    client.join(90)
    assert said == [f" hello from {asked[-1]}."]
    (after,) = fleet.engines().values()
    assert after.startswith(f"{asked[-1]}-")
    for name in ("alpha", "beta"):
        assert (tmp_path / name).read_text().count("start") == asked.count(name)
