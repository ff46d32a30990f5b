"""A day in the life of an admin (design/day-in-the-life.md): its tasks as sessions with recorded transcripts.

`tests/e2e/transcripts/NN-*.txt` has what was typed and what it answered, with names for what varies; `TRANSCRIPTS=
rewrite` records them anew. Real parts and engines; GPUs are those of the fake driver library. What each task's table
expects is in EXPECTED, so that a new recording cannot lose it. Spellings are those of the contract.

Not scripted here, and where it is tried instead:
- 1, the installation itself: tests/package (wheel, binary and .deb away from the checkout); here its first line.
- 3, the editor: the schema that the modeline names is checked by tests/catalog; VS Code is not started.
- 6, services: tests/systemd (a machine of its own under systemd-nspawn).
- 8, the second box's driver, and the join line: here a second agent on this one, with the same made-up cards.
- 9, the programs: tests/clients (their own client libraries); here what they ask first.
- 22, the reboot: tests/scripts/28-rebooted.txt; its drain is 19, and nothing here can restart this machine.
- 24, the cut cable: tests/e2e/test_partition.py (network namespaces); here the node's agent is what is away.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.fleet import start_ticks, wait_for
from tests.agent.cards import GIB, Cards
from tests.beds import needs
from tests.catalog.test_first import program
from tests.e2e.conftest import Make, fake, model
from tests.e2e.day import (
    ELSEWHERE,
    EXPECTED,
    Day,
    chat,
    pid_of,
    said,
    second_box,
    with_cards,
    write,
)
from tests.e2e.transcript import FOLDER
from tests.engines import fake_nvml
from tests.engines.shell import shell

pytestmark = needs("bash", "curl", "jq", root=False)


def test_every_task_is_here_or_named_where_it_is() -> None:
    recorded = {int(file.name[:2]) for file in FOLDER.glob("*.txt")}
    assert set(EXPECTED) | ELSEWHERE == set(range(1, 26))
    assert recorded == set(EXPECTED)
    assert all(f"- {task}," in str(__doc__) for task in ELSEWHERE)


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
    program(fleet.folder / "bin" / "llama-server")
    session.run("llmgw init catalog.yaml --models . --gpus none")
    session.run("head -1 catalog.yaml; grep ^version catalog.yaml; ls catalog.*")
    session.run("sed -i s,/path/to/,/srv/, catalog.yaml && llmgw catalog check")
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
            assert fleet.processes.pop(part).wait(60) == 130
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
    session.once("llmgw status box1 -o wide", r"8\.0 GiB +\d\.\d GiB +\d+ +http(.|\n)*comfyui")
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
        wait_for(lambda: re.search(r"\ncold .* ready ", watched.read_text()), "the watch")
    finally:
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(60) == 130
    day.check(session)
    rows = [line for line in watched.read_text().splitlines() if line.startswith("cold")]
    states = [state for row in rows for state in ("loading 63%", "ready") if f" {state} " in row]
    watch.tell(
        "llmgw status cold --watch, in a pipe, while that request came: rows are added as they change"
    )
    watch.show("\n".join(dict.fromkeys(states)))
    day.check(watch)
