"""Each thing that can be wrong has one clear error: what was refused, the fact, what to try; and its exit code.

Everything runs as the user runs it. What a daemon refuses it refuses at once, in two lines, without a traceback.
"""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.fleet import Fleet, wait_for
from tests.e2e.conftest import Make, fake, model, tiny

MODELS = {"alpha": model(fake("--alias", "alpha"), least=0)}


@pytest.fixture
def taken() -> Iterator[str]:
    """A port that another program listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield f"127.0.0.1:{sock.getsockname()[1]}"


def refused(said: "subprocess.CompletedProcess[str]", code: int, fact: str, hint: str) -> None:
    """One error and one hint, nothing on stdout, no traceback; a daemon may have logged before."""
    lines = said.stderr.strip().splitlines()
    while lines and re.match(r"20\d\d-\S+ (info|warning) ", lines[0]):
        lines.pop(0)
    assert said.returncode == code, said.stderr
    assert said.stdout == ""
    assert re.search(fact, lines[0]), said.stderr
    assert lines[0].startswith("llmgw: ")
    if hint:
        assert lines[-1].startswith("hint: "), said.stderr
        assert re.search(hint, lines[-1]), said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (
            "version: 1\nmodels:\n  a:\n    ttl: 3m\n    profiles: [{name: m, command: [x]}]\n",
            r'catalog.yaml:4:5: unknown key "ttl".*idle_timeout',
        ),
        ("version: 1\nmodels: [\n", r"catalog.yaml:\d+:\d+: "),
        (
            "version: 1\nmodels:\n  a:\n    profiles: [{name: m, command: [x, '${prot}']}]\n",
            r"catalog.yaml:4:\d+: .*\$\{prot\}.*\$?\{?port",
        ),
    ],
    ids=["unknown-key", "not-yaml", "unknown-placeholder"],
)
@pytest.mark.parametrize("verb", ["control", "up", "adopt"])
def test_a_broken_catalog(make: Make, text: str, fact: str, verb: str) -> None:
    fleet = make(MODELS)
    fleet.catalog.write_text(text)
    words: dict[str, list[Any]] = {
        "control": fleet.words("control"),
        "up": ["up", "--listen", "127.0.0.1:0"],
        "adopt": ["adopt", "--dry-run", "--report", "/dev/null"],
    }
    refused(fleet.llmgw(*words[verb]), 1, fact, "")
    check = fleet.llmgw("catalog", "check")
    assert check.returncode == 1
    assert re.search(fact, check.stdout)


def test_a_catalog_that_is_not_there(make: Make) -> None:
    fleet = make(MODELS)
    fleet.catalog.unlink()
    refused(fleet.llmgw(*fleet.words("control")), 1, "catalog.yaml: no such file", "")


@pytest.mark.parametrize(
    ("part", "flag"), [("control", "--listen"), ("control", "--gateway"), ("agent", "--listen")]
)
def test_a_port_that_is_taken(make: Make, taken: str, part: str, flag: str) -> None:
    said = make(MODELS).llmgw(*make(MODELS).words(part), flag, taken)
    refused(said, 1, f"{taken}.*in use", flag)
    if part == "control":
        assert f"by pid {os.getpid()}" in said.stderr


@pytest.mark.parametrize("part", ["control", "agent", "up"])
def test_a_state_folder_that_cannot_be_written(make: Make, tmp_path: Path, part: str) -> None:
    """A file stands where a folder should be: that stops root too."""
    file = tmp_path / "file"
    file.write_text("")
    fleet = make(MODELS)
    words = fleet.words(part) if part != "up" else ["up"]
    flag = ["--inventory", file / "inventory.db"] if part == "control" else ["--state-dir", file]
    refused(fleet.llmgw(*words, *flag), 1, f"{file}.*([Nn]ot a directory|[Ff]ile exists)", ".")


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["status", "--check"],
        ["adopt"],
        ["adopt", "--dry-run"],
        ["clear", "x"],
        ["down"],
    ],
    ids=" ".join,
)
def test_control_that_does_not_answer(make: Make, words: list[str]) -> None:
    refused(
        make(MODELS).llmgw(*words), 3, "no control at 127.0.0.1:.*connection refused", "llmgw up"
    )


def test_another_program_on_controls_port(make: Make, taken: str) -> None:
    fleet = make(MODELS)
    host, _, port = taken.partition(":")
    with socket.create_connection((host, int(port))):
        said = fleet.llmgw("status", "--control", f"ftp://{taken}")
    refused(said, 2, "'ftp://.*' is not the address of control", "http://")


def test_a_wrong_token(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make(MODELS)
    monkeypatch.setattr(
        Fleet,
        "env",
        property(lambda f: {**plain(f), "LLMGW_TOKEN": "right", "LLMGW_NODE_TOKEN": "n"}),
    )
    fleet.start("control")
    wait_for(lambda: fleet.llmgw("status").returncode == 0, "control")
    monkeypatch.setattr(Fleet, "env", property(lambda f: {**plain(f), "LLMGW_TOKEN": "wrong"}))
    refused(fleet.llmgw("status"), 4, "the token is wrong", "LLMGW_TOKEN")
    refused(fleet.llmgw("down", "--yes"), 4, "the token is wrong", "LLMGW_TOKEN")
    monkeypatch.setattr(Fleet, "env", property(plain))
    refused(fleet.llmgw("adopt"), 4, "a token is needed and none was sent", "LLMGW_TOKEN")
    fleet.start("agent")
    said = wait_for(lambda: [x for x in log(fleet, "agent") if "token" in x], "the agent's word")
    assert "LLMGW_NODE_TOKEN" in said[0]


plain: Any = vars(Fleet)["env"].fget


def log(fleet: Fleet, part: str) -> list[str]:
    return fleet.log(part).read_text().splitlines()


def test_beyond_loopback_without_a_token(make: Make) -> None:
    fleet = make(MODELS)
    refused(fleet.llmgw("control", "--listen", "0.0.0.0:0"), 2, "0.0.0.0:0", "--insecure")
    refused(
        fleet.llmgw("up", "--gateway", "0.0.0.0:0"), 2, "0.0.0.0:0.*not loopback", "llmgw control"
    )


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["agent", "--ports", "18000"], "ports: '18000' is not a range"),
        (["agent", "--label", "rack"], "'rack' is not NAME=VALUE"),
        (
            ["agent", "--config", "/nowhere.yaml"],
            "cannot read the config file /nowhere.yaml: no such",
        ),
        (["control", "--listen", "8801"], "--listen: '8801' is not HOST:PORT"),
        (["control", "--settle-timeout", "60"], "60 has no unit"),
        (["control", "--settle-timeout", "never"], "--settle-timeout: never is not possible"),
        (["status", "--control", "box1:8801"], "'box1:8801' is not the address of control"),
        (["adopt", "--report", "r.json"], "no.* named"),
        (["adopt", "--catalog", "c.yaml"], "without --dry-run or --report"),
        (
            ["adopt", "--dry-run", "--report", "/nowhere.json"],
            "cannot read the report /nowhere.json",
        ),
    ],
)
def test_words_that_do_not_fit(make: Make, words: list[str], fact: str) -> None:
    refused(make(MODELS).llmgw(*words), 2, fact, ".")


def test_a_config_file_with_a_key_that_is_none(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("node: box1\nlables: {rack: 7}\n")
    said = make(MODELS).llmgw("agent", "--config", file)
    refused(said, 2, f'{file}:2:1: unknown key "lables" - did you mean "label"', "flags")


def test_a_report_that_is_none(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text("[{]")
    said = make(MODELS).llmgw("adopt", "--dry-run", "--report", file)
    refused(said, 1, f"{file}: message refused: not JSON", "/v1/inventory")


def test_engines_that_cannot_run_say_why(make: Make) -> None:
    """Exit at once: given up, and `status` names the fact and where to look (A67). No program or no model file: said at
    once, and looked for again."""
    restart = {"max": 1, "window": "30m", "backoff": "1s"}
    broken = {
        "nobinary": ["/nowhere/llama-server", "--port", "${port}"],
        "exits": fake("--exit-at-once", "3", "--last-words", "CUDA error: out of memory"),
        "nofile": [w.replace("alpha.gguf", "gone.gguf") for w in tiny("alpha")],
    }
    models = {name: model(command) for name, command in broken.items()}
    for one in models.values():
        one["profiles"][0]["restart"] = restart
    fleet = make(models)
    fleet.start("control", "agent")

    def given_up() -> dict[str, str] | None:
        found = {m["name"]: m["why"] or "" for m in (fleet.status() or {"models": []})["models"]}
        words = {"nobinary": "not found", "exits": "gave up", "nofile": "gone.gguf"}
        # Where only two may start at a time it is looked for when one of the others is over.
        return found if found and all(said in found[name] for name, said in words.items()) else None

    why = wait_for(given_up, "one given up, one without its program, one without its file")
    assert "/nowhere/llama-server not found on box1" in why["nobinary"]
    assert "exited with code 3: CUDA error: out of memory" in why["exits"]
    assert "gone.gguf does not exist on box1" in why["nofile"]

    check = fleet.llmgw("status", "--check")
    assert check.returncode == 1
    assert len(check.stdout.splitlines()) == 1
    assert check.stdout.startswith("degraded: model exits is failed, 0 of 1 ready: gave up ")
    assert "llmgw clear exits lets it start again" in fleet.llmgw("status").stdout
    assert fleet.llmgw("clear", "exits").stdout == "cleared exits: it may start again\n"
