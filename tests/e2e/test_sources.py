"""`adopt --dry-run` and `status` ask whom they should, in that order, and change nothing anywhere (A52-A57)."""

import hashlib
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.fleet import Fleet, wait_for
from scripts.ports import free_port, free_range
from tests.e2e.conftest import Make, fake, model, write_catalog
from tests.e2e.traced import settled_down

MODELS = {"alpha": model(fake("--alias", "alpha"))}
Json = dict[str, Any]


def plan(fleet: Fleet, *words: object) -> tuple[int, Json]:
    said = fleet.llmgw("adopt", "--dry-run", "-o", "json", *words)
    assert said.stdout, said.stderr
    return said.returncode, json.loads(said.stdout)


def told(document: Json) -> list[tuple[str, str, str]]:
    return [(s["node"], s["shard"], s["verdict"]) for s in document["shards"]]


def files(folder: Path) -> dict[str, str]:
    """What every file is made of; logs grow by themselves."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".log"
    }


def test_all_sources_say_the_same_and_touch_nothing(make: Make, tmp_path: Path) -> None:
    fleet = make(MODELS)
    fleet.start("control", "agent")
    shard = fleet.ready("alpha")["shards"][0]["shard"]
    report = tmp_path / "report.json"
    report.write_text(httpx.get(f"{fleet.urls['agent']}/v1/inventory", trust_env=False).text)
    quiet = (0, [("box1", shard, "adopt")])

    code, from_control = plan(fleet)
    assert (code, told(from_control), from_control["source"]) == (*quiet, "control")

    settled_down(fleet)
    before = files(fleet.folder)
    code, from_file = plan(fleet, "--report", report)
    assert (code, told(from_file), from_file["source"]) == (*quiet, "file")
    assert files(fleet.folder) == before

    fleet.kill("control")
    settled_down(fleet)
    before = files(fleet.folder)
    code, from_agents = plan(fleet)
    assert (code, told(from_agents), from_agents["source"]) == (*quiet, "agents")
    assert files(fleet.folder) == before
    assert from_control["digest"] == from_file["digest"] == from_agents["digest"]


def test_the_survey_of_a_running_control_keeps_what_it_has(make: Make) -> None:
    fleet = make(MODELS)
    fleet.start("control", "agent")
    fleet.ready("alpha")
    said = fleet.llmgw("adopt")
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[1].startswith("= keep")


def test_an_edited_catalog_is_only_looked_at(make: Make, tmp_path: Path) -> None:
    fleet = make(MODELS)
    fleet.start("control", "agent")
    replica = fleet.ready("alpha")
    edited = write_catalog(tmp_path / "edited.yaml", {"other": model(["/bin/true"], least=0)})
    for source in ("control", "agents"):
        code, document = plan(fleet, "--catalog", edited)
        assert (code, document["source"], document["disturbs"]) == (1, source, 1)
        assert [(s["verdict"], s["reason"]) for s in document["shards"]] == [
            ("unclaimed", "model_removed")
        ]
        if source == "control":
            assert fleet.ready("alpha")["incarnation"] == replica["incarnation"]
            fleet.kill("control")


def test_with_control_away_and_no_inventory_only_this_box_is_known(make: Make) -> None:
    """Exit 3: only the local agent answered; what other nodes run cannot be told."""
    fleet = make(MODELS)
    fleet.start("control", "agent")
    fleet.ready("alpha")
    fleet.kill("control")
    fleet.inventory.unlink()
    code, document = plan(fleet)
    assert (code, document["complete"]) == (3, False)
    assert plan(fleet, "--allow-partial")[0] == 0


def test_a_silent_node_makes_the_plan_incomplete(make: Make) -> None:
    """A55: with nobody left to ask, the last picture is shown and all of it is held."""
    fleet = make(MODELS)
    fleet.start("control", "agent")
    fleet.ready("alpha")
    fleet.kill("control")
    fleet.kill("agent")
    said = fleet.llmgw("adopt", "--dry-run")
    assert said.returncode == 3
    assert "\n1 held.  Incomplete." in said.stdout
    assert "no control at" in said.stderr
    assert "no agent at" in said.stderr


def own_address() -> str:
    """An address of this box that is not loopback; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this box has no address but loopback")
        return str(sock.getsockname()[0])


def test_the_agents_of_several_nodes_are_asked_at_their_own_addresses(make: Make) -> None:
    """With control away the inventory file says where they are; one that is silent makes it exit 3 (A54, A55)."""
    host = own_address()
    fleet = make({"alpha": model(fake("--alias", "alpha", "--host", "${host}"), insecure=True)})
    agents = {"box1": free_port(), "box2": free_port()}
    for node, port in agents.items():
        low, high = free_range()
        fleet.ranges.append((low, high))
        fleet.more[node] = ["agent", "--node", node, "--state-dir", str(fleet.folder / node)]
        fleet.more[node] += ["--address", host, "--listen", f"{host}:{port}", "--insecure"]
        fleet.more[node] += ["--ports", f"{low}-{high}", "--gpus", "none"]
    fleet.start("control", *agents)
    shard = fleet.ready("alpha")["shards"][0]
    wait_for(lambda: len((fleet.survey() or {"nodes": []})["nodes"]) == 2, "both nodes")
    fleet.kill("control")
    code, document = plan(fleet)
    assert (code, document["complete"], document["source"]) == (0, True, "agents")
    assert [n["node"] for n in document["nodes"]] == ["box1", "box2"]
    other = "box2" if shard["node"] == "box1" else "box1"
    fleet.kill(other)
    said = fleet.llmgw("adopt", "--dry-run")
    assert said.returncode == 3
    assert any(line.startswith("? silent") and other in line for line in said.stdout.splitlines())
    assert f"no agent at {host}:{agents[other]}: connection refused" in said.stderr
    assert fleet.llmgw("adopt", "--dry-run", "--allow-partial").returncode == 0


def test_status_falls_back_to_the_agent_of_this_box(make: Make) -> None:
    fleet = make(MODELS)
    fleet.start("control", "agent")
    replica = fleet.ready("alpha")
    said = fleet.llmgw("status")
    assert said.returncode == 0
    assert fleet.llmgw("status", "--check").stdout == ""
    fleet.kill("control")
    said = fleet.llmgw("status", "-o", "json")
    assert said.returncode == 3
    document = json.loads(said.stdout)
    assert document["schema"] == "llmgw.status/1"
    assert document["leader"] is None
    assert [r["replica"] for r in document["replicas"]] == [replica["replica"]]
    assert "connection refused: only what runs on box1 is shown" in document["warnings"][0]
    table = fleet.llmgw("status", "alpha")
    assert table.returncode == 3
    assert replica["replica"] in table.stdout
    fleet.kill("agent")
    assert fleet.llmgw("status").returncode == 3


def test_status_has_the_shape_that_scripts_read(make: Make) -> None:
    fleet = make(MODELS)
    fleet.start("control", "agent")
    fleet.ready("alpha")
    document = json.loads(fleet.llmgw("status", "-o", "json").stdout)
    first = {key: value[0] for key, value in document.items() if isinstance(value, list) and value}
    want = {
        "nodes": "node state since version gpus power_w power_budget_w engines",
        "models": "name aliases state min max ready waiting idle_until why",
        "replicas": "replica incarnation model profile state have want endpoint in_flight since "
        "adopted_at drift breaker shards",
    }
    for key, names in want.items():
        assert set(names.split()) <= set(first[key]), key
    shard = "shard node gpus port pid state progress compute error"
    assert set(shard.split()) <= set(first["replicas"]["shards"][0])
    whole = "schema leader settling blocked catalog nodes models replicas stops_pending warnings"
    assert set(whole.split()) <= set(document)


def test_watching_ends_with_ctrl_c_and_nothing_else(make: Make) -> None:
    """A stream of JSON is JSON Lines; a control that restarts meanwhile does not end it."""
    fleet = make(MODELS)
    fleet.start("control", "agent")
    fleet.ready("alpha")
    command = [sys.executable, "-m", "llmgw", "status", "--watch", "-o", "json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=fleet.env, stdout=pipe, stderr=pipe, text=True) as watch:
        assert watch.stdout
        assert json.loads(watch.stdout.readline())["leader"]["epoch"] == 1
        fleet.kill("control")
        fleet.start("control")
        wait_for(lambda: fleet.life("control"), "control")
        epochs = (json.loads(line)["leader"] for line in watch.stdout)
        assert next(e for e in epochs if e and e["epoch"] == 2)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(60) == 130
        assert watch.stderr
        assert "Traceback" not in watch.stderr.read()
