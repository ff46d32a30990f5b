"""A box leaves loopback for an address while its engine runs: nobody is cut, and nothing is ended for it."""

from __future__ import annotations

import time

import httpx

from llmgw.agent.reach import towards
from scripts.fleet import Fleet, wait_for
from tests.e2e.conftest import Make, fake, model

#: This box's own address; 192.0.2.0/24 is nobody's (RFC 5737), and nothing is sent there.
OWN = towards("http://192.0.2.1:9") or "127.0.0.2"


def ask(fleet: Fleet) -> str:
    url = f"{fleet.urls['gateway']}/v1/chat/completions"
    body = {"model": "alpha", "messages": [{"role": "user", "content": "?"}]}
    answer = httpx.post(url, json=body, timeout=30, trust_env=False)
    assert answer.status_code == httpx.codes.OK, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def restarted_with(fleet: Fleet, address: str) -> None:
    old = fleet.life("agent")
    fleet.kill("agent")
    fleet.more["agent"] = ["--address", address]
    fleet.start("agent")
    fleet.back("agent", old)


def test_an_engine_that_listens_on_loopback_serves_on_and_comes_back_reachable(make: Make) -> None:
    command = fake("--host", "${host}", "--alias", "alpha")
    fleet = make({"alpha": model(command, insecure=True)})
    fleet.start("control", "agent")
    before = fleet.ready("alpha")
    fleet.served("alpha")
    assert ask(fleet) == " hello from alpha."

    restarted_with(fleet, OWN)
    after = fleet.ready("alpha")
    for row in (before, after):
        assert row["endpoint"].startswith("http://127.0.0.1:")
    assert after["shards"][0]["pid"] == before["shards"][0]["pid"]
    assert ask(fleet) == " hello from alpha."
    time.sleep(3.0)  # probes that fail would have told by now
    assert [r["state"] for r in (fleet.status() or {})["replicas"]] == ["ready"]
    assert ask(fleet) == " hello from alpha."
    warnings = (fleet.status() or {})["warnings"]
    dry = fleet.llmgw("adopt", "--dry-run").stdout
    if not OWN.startswith("127."):
        (said,) = [w for w in warnings if "listens on 127.0.0.1 of box1 only" in w]
        assert f"`llmgw stop {before['replica']}`: the next one listens on {OWN}" in said
        assert said in dry

    # When it suits, as the warning says.
    stop = fleet.llmgw("stop", before["replica"], "--yes")
    assert stop.returncode == 0, stop.stderr
    new = wait_for(
        lambda: next((r for r in fleet.replicas("alpha") if r["replica"] != before["replica"]), {}),
        "the next one",
    )
    assert new["endpoint"].startswith(f"http://{OWN}:")
    assert not [w for w in (fleet.status() or {})["warnings"] if "listens on" in w]
    fleet.served("alpha")
    assert ask(fleet) == " hello from alpha."
