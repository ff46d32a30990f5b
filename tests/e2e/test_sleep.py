"""An idle engine sleeps, everybody is killed, a request wakes it: the same process answers, nothing was restarted."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typing_extensions import override

from scripts.fleet import Fleet, start_ticks, wait_for
from tests.agent.cards import GIB, Cards
from tests.e2e.conftest import counted
from tests.engines import fake_nvml

SLEEPY = [sys.executable, str(Path(__file__).parents[1] / "engines" / "sleepy_engine.py")]
IMPATIENT = str(Path(__file__).with_name("impatient.py"))
ROOT = str(Path(__file__).parents[2])
MINE = 10 * GIB
#: Long enough to be killed in the middle of.
TURN_S = "1.5"


class Sleepers(Fleet):
    def __init__(self, folder: Path, cards: Cards) -> None:
        super().__init__(folder, folder / "catalog.yaml")
        self.cards = cards
        self.more["agent"] = ["--gpus", "auto"]
        self.starts = folder / "starts"
        command = [*SLEEPY, "--port", "${port}", "--card", str(cards.path), "--turn-s", TURN_S]
        command += ["--gpu-memory", str(MINE), "--alias", "alpha"]
        sleeps = {
            "asleep": "/is_sleeping",
            "levels": {"1": {"sleep": ["/sleep?level=1"], "wake": ["/wake_up"]}},
        }
        main = {
            "name": "main",
            "engine": "sleepy",
            "command": counted(command, self.starts),
            "gpus": 1,
            "gpu_memory": "10GiB",
            "sleep": 1,
        }
        scaling = {"min": 0, "idle_timeout": "1s", "min_up": "0s"}
        models = {"alpha": {"scaling": scaling, "profiles": [main]}}
        document = {"version": 1, "engines": {"sleepy": {"sleeps": sleeps}}, "models": models}
        self.catalog.write_text(yaml.safe_dump(document, sort_keys=False))

    @property
    @override
    def env(self) -> dict[str, str]:
        return super().env | self.cards.env | {"PYTHONPATH": ROOT}

    @override
    def start(self, *parts: str) -> None:
        for part in parts:
            with self.log(part).open("ab") as file:
                self.processes[part] = subprocess.Popen(
                    [sys.executable, IMPATIENT, *self.words(part)],
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )

    def ask(self) -> httpx.Response:
        body = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}]}
        url = f"{self.urls['gateway']}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=60, trust_env=False)

    def asleep(self) -> dict[str, Any]:
        """The one shard, once it sleeps and its memory was measured."""

        def look() -> dict[str, Any] | None:
            found = self.replicas("alpha", "asleep")
            shard = found[0]["shards"][0] if found else {}
            return shard if (shard.get("asleep") or {}).get("verified") else None

        return wait_for(look, "alpha asleep")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Sleepers]:
    why = fake_nvml.why_not()
    if why:
        pytest.skip(why)
    library = fake_nvml.build(tmp_path)
    assert library is not None
    folder = tmp_path / "fleet"
    folder.mkdir()
    made = Sleepers(folder, Cards(tmp_path / "gpus.json", library))
    yield made
    made.close()


def test_it_sleeps_through_everybodys_death_and_answers_as_the_same_process(
    fleet: Sleepers,
) -> None:
    fleet.start("control", "agent")
    wait_for(fleet.gateway_pid, "a gateway")
    assert fleet.ask().status_code == httpx.codes.OK
    pid = fleet.ready("alpha")["shards"][0]["pid"]
    ticks = start_ticks(pid)

    shard = fleet.asleep()
    assert shard["asleep"]["freed"] == MINE - MINE // 10
    said = fleet.llmgw("status").stdout
    assert "asleep" in said
    assert "9.0 GiB freed" in said
    assert "9.0 GiB freed, 1.0 GiB still used" in fleet.llmgw("status", "-o", "wide").stdout

    for part in ("agent", "control"):
        fleet.kill(part)
    fleet.start("control", "agent")
    assert fleet.asleep()["pid"] == pid

    answers: list[httpx.Response] = []
    client = threading.Thread(target=lambda: answers.append(fleet.ask()), daemon=True)
    client.start()
    wait_for(lambda: fleet.replicas("alpha", "starting"), "alpha on its way up")
    for part in ("agent", "control"):
        fleet.kill(part)
    fleet.start("control", "agent")
    client.join(60)
    assert answers, "the request was lost"
    assert answers[0].json()["choices"][0]["message"]["content"] == " hello from alpha."

    assert fleet.ready("alpha")["shards"][0]["pid"] == pid
    assert start_ticks(pid) == ticks
    assert fleet.starts.read_text().splitlines() == ["start"]
