"""A day in the life of an admin (design/day-in-the-life.md): its tasks as sessions with recorded transcripts.

`tests/e2e/transcripts/NN-*.txt` has what was typed and what it answered, with names for what varies; `TRANSCRIPTS=
rewrite` records them anew. Real parts and engines; GPUs are those of the fake driver library. What each task's table
expects is in EXPECTED, so that a new recording cannot lose it. Spellings are those of the contract.

Not scripted here, and where it is tried instead:
- 1, the installation itself: tests/package (wheel, binary and .deb away from the checkout); here its first line.
- 3, the editor: the schema that the modeline names is checked by tests/catalog; VS Code is not started.
- 6, services: tests/systemd (a machine of its own under systemd-nspawn).
- 8, the second box's driver: here a second agent on this one, with the same made-up cards.
- 9, the programs: tests/clients (their own client libraries); here what they ask first.
- 22, the reboot: tests/scripts/28-rebooted.txt; its drain is 19, and nothing here can restart this machine.
- 24, the cut cable: tests/e2e/test_partition.py (network namespaces); here the node's agent is what is away.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typing_extensions import override

from scripts.fleet import Fleet, start_ticks, wait_for
from scripts.ports import free_port, free_range
from tests.agent.cards import GIB, Cards
from tests.beds import needs
from tests.e2e.conftest import Make, fake, model
from tests.e2e.transcript import FOLDER, Session
from tests.engines import fake_nvml
from tests.engines.running import FAKE
from tests.engines.shell import shell

pytestmark = needs("bash", "curl", "jq", root=False)
ELSEWHERE = {6, 22}
#: Task -> what its table expects to be seen, as regular expressions of the transcript.
EXPECTED: dict[int, tuple[str, ...]] = {
    1: (r"^llmgw VERSION$",),
    2: (r"^2> llmgw: no control at 127\.0\.0\.1:CONTROL_PORT", r"^2> hint: .*`llmgw init`.*`llmgw up`", r"^\[exit 3\]"),
    3: (r"^# yaml-language-server: \$schema=", r"^version: 1"),
    4: (r"^ok: 1 model", r'catalog\.yaml:3:\d+: unknown key "ttl" .* did you mean "scaling.idle_timeout"\?', r"exit 1"),
    5: (r"control ends; engines and the gateway keep running", r"agent ends, its engines keep running", r"1 engine"),
    7: (r"^\? foreign .*matches main", r"^take over: llmgw adopt box1:PID1 --as alpha/main", r"nothing was restarted"),
    8: (r"^box2  ready  0 RTX 3090", r"gen4 x16 of gen4 x16  570\.86\.15", r"24\.0 GiB"),
    9: (r'"id":"alpha","aliases":\["first"\],"context_length":32768', r'"id":"away"', r"box2  unreachable"),
    10: (r"loading 63% eta AGE", r"hello from cold"),
    11: (r"loading", r"ready"),
    12: (r"^NODE  STATE  GPU  MEMORY  POWER  ENGINES  FREE  RESERVED  FOREIGN", r"NOT OURS", r"comfy"),
    13: (r"scaling\.min: 0 -> 1 \(live\)", r"Restart would disturb no engine"),
    14: (r"-/\+ roll  alpha-ID1  .*-c 32768 -> 65536", r"= adopt  beta-ID1/0", r"1 roll"),
    15: (r"deep-ID1/0 .*ready", r"deep-ID1/1 .*ready", r"deep-ID2/0 .*ready", r"deep-ID2/1 .*ready"),
    16: (r"cannot allocate memory|out of memory", r"exited with code 3", r"shorten the context", r"llmgw clear broken"),
    17: (r"^broken$", r"^alpha-ID1$", r"^2> llmgw: there is no node, model or replica called 'nobody'"),
    18: (r"^\[exit 1\]", r"^degraded: ", r"^\[exit 3\]"),
    19: (r"GPU 0 of box1 is drained", r"503", r"may be used again"),
    20: (r"b8933", r"b9402", r"-/\+ roll"),
    21: (r"^exit code of the dry run: 0$", r"the same pid"),
    23: (r"only what runs on box1 is shown", r"^\[exit 3\]", r"the same pid"),
    24: (r"box2  unreachable AGE", r"what it runs is left alone", r"the same pid"),
    25: (r"a record is unreadable.* the file is kept  file=FOLDER/agent", r"= adopt  alpha-ID1/0", r"the same pid"),
}  # fmt: skip


def test_every_task_is_here_or_named_where_it_is() -> None:
    recorded = {int(file.name[:2]) for file in FOLDER.glob("*.txt")}
    assert set(EXPECTED) | ELSEWHERE == set(range(1, 26))
    assert recorded == set(EXPECTED)
    assert all(f"- {task}," in str(__doc__) for task in ELSEWHERE)


class Day:
    """Sessions of one fleet, each checked at its end."""

    def __init__(self, fleet: Fleet, *models: str) -> None:
        self.fleet = fleet
        self.models = models

    def task(self, number: int, title: str) -> Session:
        return Session(self.fleet, number, title, self.models)

    def check(self, session: Session) -> None:
        session.check(EXPECTED[session.number])


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    """Two RTX 3090 of a fake driver library that a real binding asks."""
    why = fake_nvml.why_not()
    if why:
        pytest.skip(why)
    folder = tmp_path / "nvml"
    folder.mkdir()
    assert fake_nvml.build(folder) is not None
    there = Cards(tmp_path / "cards.json", folder)
    for index in range(2):
        there.set(index, name="NVIDIA GeForce RTX 3090")
    there.write()
    return there


class CardFleet(Fleet):
    """Its parts find the fake driver library."""

    cards: Cards

    @property
    @override
    def env(self) -> dict[str, str]:
        return super().env | self.cards.env


def with_cards(fleet: Fleet, cards: Cards) -> CardFleet:
    fleet.__class__ = CardFleet
    assert isinstance(fleet, CardFleet)
    fleet.cards = cards
    fleet.more["agent"] = ["--gpus", "auto"]
    return fleet


def second_box(fleet: Fleet, gpus: str = "none") -> None:
    ports = free_range()
    fleet.ranges.append(ports)
    fleet.more["box2"] = [
        *("agent", "--node", "box2", "--listen", f"127.0.0.1:{free_port()}", "--gpus", gpus),
        *("--ports", "{}-{}".format(*ports), "--state-dir", str(fleet.folder / "box2")),
    ]


def pid_of(fleet: Fleet, name: str) -> int:
    return int(fleet.ready(name)["shards"][0]["pid"])


def test_the_first_hour(make: Make) -> None:
    """Before there is anything: 1, 2, 3, 4."""
    fleet = make({})
    fleet.catalog.unlink()
    day = Day(fleet)
    session = day.task(1, "Install on the first box")
    session.run("llmgw --version")
    day.check(session)

    session = day.task(2, "See what is here, before any configuration")
    session.run("llmgw status")
    day.check(session)

    session = day.task(3, "Write the first catalog")
    session.run("llmgw init catalog.yaml --models . --gpus none")
    session.run("head -1 catalog.yaml; grep ^version catalog.yaml")
    day.check(session)

    session = day.task(4, "Check it")
    write(fleet.catalog, alpha=model(fake("--alias", "alpha"), least=0))
    session.run("llmgw catalog check catalog.yaml")
    fleet.catalog.write_text(
        "version: 1\nmodels:\n  alpha: {ttl: 60, profiles: [{name: a, command: [a]}]}\n"
    )
    session.run("llmgw catalog check catalog.yaml")
    day.check(session)


def test_in_the_foreground_and_by_hand(make: Make) -> None:
    """5: ready lines, and Ctrl-C. 7: an engine that somebody started by hand."""
    one = model(fake("--tokens", "3", "--alias", "${model}"), least=0)
    one["scaling"] = {"min": 0, "max": 1, "idle_timeout": "never"}
    fleet = make({"alpha": one})
    day = Day(fleet, "alpha")
    fleet.start("control", "agent")
    wait_for(lambda: (fleet.status() or {"settling": 1})["settling"] is None, "settled")
    session = day.task(7, "Bring a llama-server that somebody started under control")
    with shell(fleet.folder) as person:
        pid, _ = person.engine("--tokens", "3", "--alias", "mine")
        session.mine.add(str(pid))
        session.once("llmgw adopt --dry-run", rf"pid {pid}")
        session.run(f"llmgw adopt box1:{pid}", shown="llmgw adopt box1:PID1")
        session.run(
            f"llmgw adopt box1:{pid} --as alpha/main", shown="llmgw adopt box1:PID1 --as alpha/main"
        )
        session.once("llmgw adopt --dry-run", "= adopt")
        day.check(session)

        session = day.task(
            5,
            "Control and agent in the foreground: they say when they are ready, and what keeps running",
        )
        session.tell("llmgw control, llmgw agent; then Ctrl-C in both")
        for part in ("agent", "control"):
            fleet.processes[part].send_signal(signal.SIGINT)
            assert fleet.processes.pop(part).wait(20) == 130
            session.run(
                f"grep -o -E 'ready at .*|(control|agent) ends.*' {part}.log | sed -E 's/ +(engines|gateway)=.*//'"
            )
        assert start_ticks(pid)
        session.tell("1 engine runs, as before")
        day.check(session)


def test_a_second_box_and_its_memory(
    make: Make, cards: Cards, request: pytest.FixtureRequest
) -> None:
    """8, 12, 9, 24: cards of two boxes, who holds memory, what clients see while one is away."""
    alpha = model(fake("--alias", "alpha"), gpus=1, gpu_memory="8GiB")
    alpha |= {"aliases": ["first"], "context": 32768}
    away = model(fake("--alias", "away"), gpus=1, gpu_memory="8GiB", pool="second")
    fleet = with_cards(make({"alpha": alpha, "away": away}), cards)
    second_box(fleet, "auto")
    fleet.more["box2"] += ["--pool", "second"]
    day = Day(fleet, "alpha", "away")
    fleet.start("control", "agent")
    pid = pid_of(fleet, "alpha")
    comfy = subprocess.Popen(["bash", "-c", "exec -a comfyui sleep 100"])
    request.addfinalizer(comfy.wait)
    request.addfinalizer(comfy.kill)
    cards.use(0, 9 * GIB, (pid, 8 * GIB), (comfy.pid, GIB))
    session = day.task(8, "Add box 2")
    session.run("llmgw status")
    session.tell("llmgw agent --control URL, on box 2")
    fleet.start("box2")
    wait_for(lambda: len(fleet.replicas("away")) == 1, "away on box2")
    session.run("llmgw status box2 -o wide | head -3")
    day.check(session)

    session = day.task(12, "See who holds memory")
    session.mine.add(str(comfy.pid))
    session.once("llmgw status box1 -o wide", "comfyui")
    day.check(session)
    while_it_is_away(day)


def while_it_is_away(day: Day) -> None:
    fleet = day.fleet
    session = day.task(9, "Point clients at one URL, while node 2 is off")
    other = pid_of(fleet, "away")
    fleet.kill("box2")
    session.once("llmgw status | grep -E '^(NODE|box|warning: box2)'", "left alone")
    session.run("curl -s $GATEWAY/v1/models | jq -c '.data[] | {id, aliases, context_length}'")
    day.check(session)

    session = day.task(24, "Node 2 is away for a while")
    session.run("llmgw status | grep -E '^(NODE|box|warning: box2)'")
    before = fleet.engines()
    fleet.start("box2")
    wait_for(
        lambda: (fleet.status() or {"nodes": []})["nodes"][-1]["state"] == "ready", "box2 back"
    )
    session.once("llmgw adopt --dry-run", "2 adopted")
    assert fleet.engines() == before
    assert pid_of(fleet, "away") == other
    session.tell("the same pid as before, and nothing beside it")
    day.check(session)


CHAT = (
    "curl -sN -o answer -w '%{http_code}\\n' $GATEWAY/v1/chat/completions -H 'content-type: application/json' "
    """-d '{"model":"NAME","stream":STREAM,"messages":[{"role":"user","content":"hi"}]}'"""
)


def chat(name: str, *, stream: bool = False) -> str:
    return CHAT.replace("NAME", name).replace("STREAM", json.dumps(stream))


def said(file: str) -> str:
    """The words of a stream."""
    return rf"sed -n 's/^data: {{/{{/p' {file} | jq -j '.choices[0].delta.content // empty'; echo"


def test_a_cold_model(make: Make) -> None:
    """10: a stream that opens at once and a load that is seen. 11: a watch in a pipe."""
    dots = 'printf \'%063d\' 0 | tr 0 . ; echo; exec "$$0" "$$@"'
    cold = model(
        ["sh", "-c", dots, *fake("--alias", "cold", "--load-s", "4")], least=0, compute="llama.cpp"
    )
    fleet = make({"cold": cold})
    fleet.start("control", "agent")
    wait_for(
        lambda: (fleet.status() or {"settling": 1})["settling"] is None and fleet.gateway_pid(),
        "settled",
    )
    day = Day(fleet, "cold")
    session, watch = day.task(10, "First request to a cold model"), day.task(11, "Why is it slow")
    watched = fleet.folder / "watched"
    with watched.open("wb") as out:
        watcher = subprocess.Popen(
            [sys.executable, "-m", "llmgw", "status", "cold", "--watch"], env=fleet.env, stdout=out
        )
    try:
        session.run(f"({chat('cold', stream=True)} >code 2>&1 &)")
        session.once("llmgw status cold", r"loading 63% eta [1-9]")
        session.once("cat code", "200")
        session.run(said("answer"))
        session.once("llmgw status cold", r"ready +- +\d\d:\d\d")
        wait_for(lambda: " ready " in watched.read_text(), "the watch")
    finally:
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(20) == 130
    day.check(session)
    rows = [line for line in watched.read_text().splitlines() if line.startswith("cold")]
    states = [state for row in rows for state in ("loading 63%", "ready") if f" {state} " in row]
    watch.tell(
        "llmgw status cold --watch, in a pipe, while that request came: rows are added as they change"
    )
    watch.show("\n".join(dict.fromkeys(states)))
    day.check(watch)


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
    fleet.start("control", "agent")
    pid = pid_of(fleet, "alpha")
    day = Day(fleet, "alpha")
    session = day.task(21, "Update llmgw itself")
    session.run("llmgw adopt --dry-run; echo exit code of the dry run: $?")
    old = fleet.life("agent")
    session.tell("systemctl restart llmgw-agent")
    agent = fleet.processes.pop("agent")
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(20) == 0
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
    session.once("llmgw status deep", "ready")
    day.check(session)


def write(path: Path, **models: Any) -> None:
    text = yaml.safe_dump({"version": 1, "models": models}, sort_keys=False)
    path.write_text(text)
