"""Every command's `-o json` is what its shipped schema declares: nothing missing, nothing undeclared."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scripts import schemas
from scripts.documents import DOCUMENTS
from scripts.fleet import Fleet, wait_for
from scripts.generated import stale
from tests.e2e.conftest import Make, fake, model

SWAP = "models: {a: {cmd: 'llama-server -m /m/a.gguf --port ${PORT}', ttl: 60}}\n"
GPUS = [{"uuid": "GPU-1", "index": 0, "name": "card", "memory": 8 << 30, "memory_used": 1 << 30}]


def test_the_schemas_are_what_is_declared() -> None:
    assert not stale(schemas.files()), "run 'make docs'"


def judged(said: subprocess.CompletedProcess[str]) -> Any:
    """The document as its struct; a field that is not declared is an error, and so is one that is not there."""
    document = json.loads(said.stdout)
    return msgspec.convert(document, DOCUMENTS[document["schema"]])


@pytest.fixture
def fleet(make: Make) -> Fleet:
    """Ready, on demand, waiting for what is not there, and one that fails."""
    wide = model(fake("--alias", "huge"), gpus=1, gpu_memory="80GiB")
    fails = model(["sh", "-c", "exit 3"])
    fails["profiles"][0]["restart"] = {"max": 1, "window": "10m", "backoff": "1s"}
    one = make({
        "alpha": model(fake("--alias", "alpha"), gpus=1, gpu_memory="1GiB"),
        "beta": model(fake("--alias", "beta"), least=0), "huge": wide, "fails": fails,
    })  # fmt: skip
    gpus = one.folder / "gpus.json"
    gpus.write_text(json.dumps(GPUS))
    one.more["agent"] = ["--gpus", str(gpus)]
    one.start("control", "agent")
    one.ready("alpha")
    return one


def test_every_verb_with_json(fleet: Fleet, tmp_path: Path) -> None:
    swap = tmp_path / "config.yaml"
    swap.write_text(SWAP)
    there = tmp_path / "there"  # of a control that listened beyond loopback
    there.mkdir()
    (there / "url").write_text("http://127.0.0.1:8801\nhttp://10.0.0.10:8801\n")
    seen = {
        type(judged(fleet.llmgw(*words, "-o", "json"))).SCHEMA
        for words in (
            ("status",), ("status", "alpha"), ("status", "--check"), ("adopt", "--dry-run"), ("adopt",),
            ("wake", "beta", "--dry-run"), ("wake", "huge"), ("wait", "alpha"), ("events",), ("logs", "alpha"),
            ("catalog", "check", fleet.catalog), ("catalog", "show", fleet.catalog), ("doctor",), ("version",),
            ("key", "add", "client", "--model", "alpha", "--in-flight", "2", "--per-minute", "9", "--upstream"),
            ("key", "list"), ("import", "llama-swap", swap),
            ("token", "list"), ("token", "--inventory", there / "inventory.db"),
        )
    }  # fmt: skip
    assert set(DOCUMENTS) - seen == {"llmgw.takeover/1"}, "tests/e2e/test_by_hand.py has that one"


def test_the_status_in_trouble(fleet: Fleet) -> None:
    """Paused, draining, given up, blocked; then by the local agent, and the plan of no control at all."""
    wait_for(
        lambda: any(m["state"] == "failed" for m in (fleet.status() or {})["models"]), "a give-up"
    )
    fleet.llmgw("pause")
    fleet.llmgw("drain", fleet.node, "--yes")
    said = judged(fleet.llmgw("status", "-o", "json"))
    assert said.paused
    assert said.nodes[0].drained
    judged(fleet.llmgw("adopt", "--dry-run", "-o", "json"))
    fleet.kill("control")
    assert judged(fleet.llmgw("status", "-o", "json")).leader is None
    assert judged(fleet.llmgw("adopt", "--dry-run", "-o", "json")).source == "agents"
    fleet.kill("agent")
    plan = judged(fleet.llmgw("adopt", "--dry-run", "-o", "json"))
    assert not plan.complete
