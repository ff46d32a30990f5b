"""Control's API does what its OpenAPI document says: checked with Schemathesis, against a control with a real agent.

Schemathesis is in an environment of its own (build/schemas, `make schemas`): llmgw does not depend on it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from llmgw.control.api import Api
from scripts import openapi
from scripts.fleet import Fleet
from scripts.generated import ROOT, stale
from tests.e2e.conftest import Make, fake, model

PROGRAM = ROOT / "build" / "schemas" / "bin" / "schemathesis"
TOKEN = "operators-own-token"
SEED = 8
#: For each call, beside those that cover its schema. By number and not by time, so that a run is like the last.
EXAMPLES = 8

needs_schemathesis = pytest.mark.skipif(
    not PROGRAM.exists(), reason="Schemathesis is not installed (make schemas)"
)


def test_the_document_is_what_is_declared() -> None:
    assert not stale(openapi.files()), "run 'make docs'"


def test_every_call_is_in_it() -> None:
    """With what it answers: a route that nobody described is an error of the generator."""
    document = openapi.document()
    listed = {(m.upper(), p) for p, ways in document["paths"].items() for m in ways}
    assert listed == {(method, path) for method, path, _, _ in Api.__new__(Api).table()}


@pytest.fixture
def guarded(make: Make) -> Fleet:
    """One that runs and one on demand, behind tokens."""
    fleet = make(
        {"alpha": model(fake("--alias", "alpha")), "beta": model(fake("--alias", "beta"), least=0)}
    )
    for part, name in (("control", "token"), ("control", "node-token"), ("agent", "node-token")):
        file = fleet.folder / part / name
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.write_text(TOKEN if name == "token" else "nodes-own-token")
        file.chmod(0o600)
    fleet.http.headers["Authorization"] = f"Bearer {TOKEN}"
    fleet.start("control", "agent")
    fleet.ready("alpha")
    return fleet


@needs_schemathesis
def test_control_does_what_it_says(guarded: Fleet, tmp_path: Path) -> None:
    """Fields that are not declared are errors here; the shipped document allows further ones."""
    url = guarded.urls["control"]
    replica = guarded.replicas("alpha")[0]["replica"]
    served = guarded.http.get(f"{url}/openapi.json").json()
    assert served == openapi.document()
    strict = tmp_path / "openapi.json"
    strict.write_text(json.dumps(openapi.document(strict=True)))
    config = Path(__file__).with_name("schemathesis.toml")
    done = subprocess.run(
        [
            str(PROGRAM), "--config-file", str(config), "run", str(strict), "--url", url,
            "--max-examples", str(EXAMPLES), "--seed", str(SEED), "--no-color",
        ],
        cwd=tmp_path, env=guarded.env | {"TOKEN": TOKEN, "REPLICA": replica},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    guarded.check_alive()
    log = guarded.log("control").read_text()
    assert "a request failed" not in log
