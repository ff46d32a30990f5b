"""One real llama.cpp engine over two agents: rank 0 computes with what rank 1 lends it (A26, A34, F77).

The built-in engine `rpc`, its programs from the pinned package, the tiny model. Skipped, with what is missing, where
this CPU cannot run them.
"""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from typing_extensions import override

from scripts.fleet import Fleet, start_ticks, wait_for
from tests.e2e.conftest import write_catalog
from tests.e2e.test_groups import pids, with_second_node
from tests.engines import llama

Json = dict[str, Any]
pytestmark = pytest.mark.e2e


class RpcFleet(Fleet):
    """Agents that find llama-server and ggml-rpc-server on their PATH."""

    programs = ""

    @property
    @override
    def env(self) -> dict[str, str]:
        env = super().env
        return env | {"PATH": f"{self.programs}{os.pathsep}{env['PATH']}"}


def rpc_model(**profile: Any) -> Json:
    """As an operator writes it: the engine's name, the weights, two nodes."""
    one = {
        "name": "main",
        "engine": "rpc",
        "weights": str(llama.model("deep")),
        "args": ["-ngl", 99, *llama.FLAGS],
        "worker_args": ["-t", 1],
        "nodes": 2,
        "host_memory": "256MiB",
        **profile,
    }
    return {"scaling": {"min": 1, "max": 1}, "profiles": [one]}


def programs() -> str:
    """The folder of the two programs, or a skip."""
    head, worker = llama.rpc_head_and_worker("deep")
    folder = Path(head[0]).parent
    assert Path(worker[0]).parent == folder
    return str(folder)


def said(fleet: Fleet, timeout_s: float = 60.0) -> str:
    body = {"model": "deep", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    url = f"{fleet.urls['gateway']}/v1/chat/completions"
    answer = httpx.post(url, json=body, timeout=timeout_s, trust_env=False).raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.fixture
def fleet(tmp_path: Path) -> Any:
    found = programs()
    made = RpcFleet(tmp_path, write_catalog(tmp_path / "catalog.yaml", {"deep": rpc_model()}))
    made.programs = found
    with_second_node(made)
    yield made
    made.close()


def test_a34_f77_a_real_group_comes_up_is_adopted_and_starts_anew_together(fleet: Fleet) -> None:
    fleet.start("control", "agent", "box2")
    first = fleet.ready("deep")
    fleet.served("deep")
    assert said(fleet) == " hello from deep."
    engines = pids(fleet)
    lead, worker = f"{first['replica']}/0", f"{first['replica']}/1"
    assert set(engines) == {lead, worker}
    born = {shard: start_ticks(pid) or 0 for shard, pid in engines.items()}
    assert 0 < born[worker] <= born[lead]
    (compute,) = [s["compute"] for s in first["shards"] if s["shard"] == lead]
    assert (compute["device"], compute["layers_gpu"], compute["layers_total"]) == (
        "rpc",
        3,
        3,
    )  # A69

    # A26: all of llmgw is killed, the engine is not
    for part in ("control", "agent", "box2"):
        fleet.kill(part)
    fleet.start("control", "agent", "box2")
    adopted = fleet.ready("deep")
    assert (adopted["replica"], pids(fleet)) == (first["replica"], engines)
    assert said(fleet) == " hello from deep."

    # F77: the worker dies, and with it the head; both start anew, once, together
    os.kill(engines[worker], signal.SIGKILL)

    def anew() -> Json | None:
        return next((r for r in fleet.replicas("deep") if r["replica"] != first["replica"]), None)

    second = wait_for(anew, "a new group", 60.0)
    assert (second["have"], second["want"]) == (2, 2)
    assert set(pids(fleet)) == {f"{second['replica']}/0", f"{second['replica']}/1"}
    fleet.served("deep")
    assert said(fleet) == " hello from deep."
    assert started(fleet) == [first["replica"], second["replica"]]


def started(fleet: Fleet) -> list[str]:
    """Every replica that control ordered to start, by its events."""
    found = fleet.http.get(f"{fleet.urls['control']}/api/v1/events?after=0").raise_for_status()
    return [e["replica"] for e in found.json()["events"] if e["kind"] == "start"]
