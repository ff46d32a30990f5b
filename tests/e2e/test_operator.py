"""An operator's verbs on a real fleet, through a pipe and on a terminal: what they hold back, let happen and end."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from scripts.fleet import Fleet, wait_for
from tests.e2e.conftest import Make, fake, model

Json = dict[str, Any]
SOON = {"stray_grace": "1s", "start_limit": 5}


def write(fleet: Fleet, *names: str, least: int = 1) -> None:
    models = {n: model(fake("--alias", n), least=least) for n in names}
    text = yaml.safe_dump({"version": 1, "defaults": SOON, "models": models})
    fleet.catalog.write_text(text)


def started(make: Make, *names: str) -> Fleet:
    fleet = make({})
    write(fleet, *names)
    fleet.start("control", "agent")
    for name in names:
        fleet.ready(name)
    return fleet


def again(fleet: Fleet, *more: str) -> None:
    """Another control in place of one that was killed."""
    fleet.more["control"] = list(more)
    fleet.start("control")
    wait_for(lambda: (fleet.status() or {"settling": True})["settling"] is None, "control settled")


def plan(fleet: Fleet, *words: object) -> Json:
    document: Json = json.loads(fleet.llmgw("adopt", "--dry-run", "-o", "json", *words).stdout)
    return document


def status(fleet: Fleet) -> Json:
    found = fleet.status()
    assert found is not None
    return found


def drained(fleet: Fleet) -> set[str]:
    """Models of which a replica is on its way out; how long that takes is not an operator's business."""
    return {r["model"] for r in status(fleet)["replicas"] if r["state"] == "draining"}


def staying(fleet: Fleet) -> set[str]:
    return {r["model"] for r in status(fleet)["replicas"] if r["state"] != "draining"}


def typed(fleet: Fleet, text: str, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a verb whose stdin is a terminal on which somebody types."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, text.encode())
        said = subprocess.run(
            [sys.executable, "-m", "llmgw", *words],
            env=fleet.env,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    return said.returncode, said.stdout, said.stderr


def test_a48_a49_paused_then_blocked_then_confirmed_over_kills_of_control(make: Make) -> None:
    """Four of five models leave the catalog: nothing of them ends before both words were said."""
    names = ("m0", "m1", "m2", "m3", "stays")
    fleet = started(make, *names)
    before = fleet.engines()
    assert fleet.llmgw("pause", "--why", "a new rack").returncode == 0
    write(fleet, "stays")
    fleet.kill("control")
    again(fleet)
    wait_for(lambda: len(status(fleet)["stops_pending"]) == 4, "four stops announced")
    wait_for(lambda: all(s["at"] is None for s in status(fleet)["stops_pending"]), "the grace over")
    assert fleet.engines() == before
    said = fleet.llmgw("status").stdout
    assert "by the operator: a new rack; nothing is stopped" in said
    assert fleet.llmgw("resume").returncode == 0
    check = fleet.llmgw("status", "--check")
    assert (check.returncode, check.stdout[:20]) == (1, "degraded: blocked: w")
    digest = status(fleet)["confirm"]
    assert plan(fleet)["blocked"]["digest"] == digest
    assert fleet.engines() == before
    assert fleet.llmgw("confirm", digest).returncode == 0
    fleet.kill("control")
    again(fleet)
    wait_for(lambda: drained(fleet) == set(names) - {"stays"}, "the four are on their way out")


def test_a56_a57_an_upgrade_goes_on_with_the_plan_that_was_seen_or_not_at_all(make: Make) -> None:
    fleet = started(make, "alpha")
    write(fleet, "alpha", "beta")
    seen = plan(fleet)
    assert (seen["source"], seen["summary"]["start"]) == ("control", 1)
    fleet.kill("control")
    offline = plan(fleet)
    assert (offline["source"], offline["digest"]) == ("agents", seen["digest"])
    again(fleet, "--require-plan", seen["digest"])
    fleet.ready("beta")
    assert status(fleet)["blocked"] is None
    fleet.kill("control")
    write(fleet, "alpha", "beta", "gamma")
    again(fleet, "--require-plan", seen["digest"])
    engines = fleet.engines()
    blocked = status(fleet)["blocked"]
    found = status(fleet)["confirm"]
    assert found == plan(fleet)["digest"]
    assert seen["digest"] in blocked
    assert f"llmgw confirm {found}" in blocked
    assert fleet.engines() == engines
    assert fleet.llmgw("confirm", seen["digest"]).returncode == 1
    assert fleet.llmgw("confirm", found).returncode == 0
    fleet.ready("gamma")
    assert fleet.llmgw("control", "--require-plan", "9f").returncode == 2


def test_a65_stop_and_catalog_apply_ask_on_a_terminal_and_refuse_in_a_pipe(
    make: Make, tmp_path: Path
) -> None:
    fleet = started(make, "alpha", "beta")
    shard = fleet.ready("alpha")["shards"][0]
    piped = fleet.llmgw("stop", "alpha")
    assert (piped.returncode, piped.stdout) == (2, "")
    code, out, err = typed(fleet, "n\n", "stop", shard["shard"])
    assert (code, out) == (1, "")
    assert f"this stops 1 engine, once requests in flight are done: {shard['shard']}" in err
    assert "the catalog wants min 1 of alpha" in err
    assert shard["pid"] in fleet.engines()
    code, out, err = typed(fleet, "y\n", "stop", shard["shard"])
    assert code == 0, err
    assert out.startswith(f"stopping {shard['shard']} on box1")
    wait_for(lambda: shard["pid"] not in fleet.engines(), "the engine has ended")
    fleet.ready("alpha")
    new = tmp_path / "new.yaml"
    old = fleet.catalog.read_text()
    write(fleet, "alpha")
    new.write_text(fleet.catalog.read_text())
    fleet.catalog.write_text(old)
    code, out, err = typed(fleet, "n\n", "catalog", "apply", str(new))
    assert (code, fleet.catalog.read_text()) == (1, old)
    assert "change: beta: removed" in out
    assert "this disturbs 1 engine: beta-" in err
    assert typed(fleet, "yes\n", "catalog", "apply", str(new))[0] == 0
    assert fleet.catalog.read_text() == new.read_text()
    assert fleet.catalog.with_name("catalog.yaml.bak").read_text() == old
    wait_for(lambda: "beta" not in staying(fleet), "beta is on its way out, or gone already")


def test_a43_force_is_for_one_shard_and_a47_a_lost_node_is_forgotten(make: Make) -> None:
    fleet = started(make, "alpha")
    write(fleet, "alpha", least=0)
    assert fleet.llmgw("catalog", "apply").stdout.splitlines()[0].startswith("change: alpha: ")
    shard = fleet.ready("alpha")["shards"][0]
    assert fleet.llmgw("stop", "--force", "alpha", "--yes").returncode == 2
    assert fleet.llmgw("stop", "--force", shard["shard"], "--yes").returncode == 0
    wait_for(lambda: not fleet.engines(), "the engine has ended")
    refused = fleet.llmgw("forget", "box1", "--yes")
    assert refused.returncode == 1
    assert "stop its agent first" in refused.stderr
    fleet.kill("agent")
    fleet.kill("control")
    fleet.start("control")
    wait_for(fleet.status, "control")
    assert status(fleet)["settling"]["waiting_for"] == ["box1"]
    assert fleet.llmgw("forget", "box1").returncode == 2
    assert fleet.llmgw("forget", "bxo1").stderr.endswith(
        "hint: did you mean box1? `llmgw status` shows what there is\n"
    )
    assert fleet.llmgw("forget", "box1", "--yes").stdout == "box1 is forgotten\n"
    assert status(fleet)["nodes"] == []
