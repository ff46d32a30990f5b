"""`llmgw pause`, `resume`, `confirm` and `catalog apply`: what they send and say (A48, A49, A56, A58)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.say import llmgw
from tests.cli.stub import Stub, Terminal, refused

Json = dict[str, Any]
DIGEST = f"sha256:{'a' * 64}"
CATALOG = "version: 1\nmodels: {}\n"


def test_a48_pause_and_resume(stub: Stub) -> None:
    since = "since 2026-01-01T14:03:00Z by the operator"
    stub.answers["POST /api/v1/pause"] = {"paused": since, "warning": None}
    said = llmgw("pause")
    assert (said.code, said.out) == (0, f"paused {since}; `llmgw resume` ends it\n")
    stub.answers["POST /api/v1/pause"]["warning"] = "history is not kept"
    said = llmgw("pause", "--why", "new switch")
    assert said.err == "llmgw: a restart of control would forget it: history is not kept\n"
    for was, out in (
        (since, f"resumed; it had been paused {since}\n"),
        (None, "it was not paused\n"),
    ):
        stub.answers["POST /api/v1/resume"] = {"paused": None, "was": was, "warning": None}
        assert llmgw("resume").out == out
    assert stub.sent[:2] == [
        ("POST /api/v1/pause", {}),
        ("POST /api/v1/pause", {"why": "new switch"}),
    ]


def test_a49_confirm(stub: Stub) -> None:
    stub.answers["POST /api/v1/confirm"] = {"confirmed": DIGEST, "engines": ["a-1", "b-1"]}
    assert llmgw("confirm", DIGEST).out == f"confirmed {DIGEST}: a-1, b-1\n"
    stub.answers["POST /api/v1/confirm"] = {"confirmed": DIGEST, "engines": []}
    assert llmgw("confirm", DIGEST).out == f"confirmed {DIGEST}\n"
    assert stub.sent == [("POST /api/v1/confirm", {"digest": DIGEST})] * 2
    stub.answers["POST /api/v1/confirm"] = refused("nothing is blocked")
    said = llmgw("confirm", DIGEST)
    assert (said.code, said.out, said.err) == (1, "", "llmgw: nothing is blocked\n")


def plan(*, disturbs: int = 0, **more: Any) -> Json:
    action = {
        "action": "drain",
        "replica": "a-1",
        "model": "a",
        "node": "box1",
        "gpus": [],
        "why": "gone",
        "due_s": 0.0,
        "disturbs": True,
        "withheld": "too many",
    }
    return {
        "shards": [],
        "nodes": [],
        "actions": [action] if disturbs else [],
        "complete": True,
        "disturbs": disturbs,
        "digest": DIGEST,
        "blocked": {"digest": "sha256:b", "why": "too many", "engines": ["a-1"]},
        "changes": ["a: removed"],
        "problems": [],
    } | more


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(CATALOG)
    return path


DONE = {"path": "/etc/catalog.yaml", "version": "1", "changes": ["a: removed"]} | {
    "old": "/etc/catalog.yaml.bak"
}


def test_a58_what_disturbs_nobody_is_applied_at_once(stub: Stub, file: Path) -> None:
    stub.answers |= {"POST /api/v1/plan?leader=1": plan(), "PUT /api/v1/catalog": DONE}
    said = llmgw("catalog", "apply", file)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "change: a: removed",
        "no engine runs",
        f"0 adopted.  Restart would disturb no engine.   digest {DIGEST}",
        "/etc/catalog.yaml is in use, 1 change; the one before is kept as /etc/catalog.yaml.bak",
    ]
    assert stub.sent == [
        ("POST /api/v1/plan?leader=1", {"catalog": CATALOG}),
        ("PUT /api/v1/catalog", {"catalog": CATALOG}),
    ]


def test_a49_a_yes_goes_with_the_digest_of_what_was_shown(
    stub: Stub, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answers |= {"POST /api/v1/plan?leader=1": plan(disturbs=1), "PUT /api/v1/catalog": DONE}
    stub.answers |= {"GET /api/v1/plan?leader=1": plan(disturbs=1), "POST /api/v1/catalog": DONE}
    said = llmgw("catalog", "apply", file)
    assert said.code == 2
    assert said.err == (
        "llmgw: this disturbs 1 engine: a-1; not asked, because stdin is not a terminal\n"
        "hint: add --yes to mean it\n"
    )
    assert "blocked" not in said.out  # a yes is one to the guard as well
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert llmgw("catalog", "apply", file).err.endswith("not confirmed, the catalog in use stays\n")
    assert {what for what, _ in stub.sent} == {"POST /api/v1/plan?leader=1"}
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert llmgw("catalog", "apply", file).code == 0
    agreed = {"digest": DIGEST, "confirm": True}
    assert stub.sent[-1] == ("PUT /api/v1/catalog", {"catalog": CATALOG} | agreed)
    assert llmgw("catalog", "apply", "--yes").code == 0
    assert stub.sent[-1] == ("POST /api/v1/catalog", agreed)
    stub.answers["POST /api/v1/catalog"] = refused("the plan is another by now", "look again")
    assert llmgw("catalog", "apply", "--yes").err == (
        "llmgw: the plan is another by now\nhint: look again\n"
    )


def test_a_roll_that_waits_for_other_starts_is_named_too(stub: Stub, file: Path) -> None:
    waits = plan(disturbs=1)
    waits["actions"][0] |= {"action": "wait", "profile": "p", "replica": None, "withheld": None}
    stub.answers["POST /api/v1/plan?leader=1"] = waits
    said = llmgw("catalog", "apply", file)
    assert said.err.startswith("llmgw: this disturbs 1 engine: a; not asked")


def test_a58_a_mistake_is_said_before_anything_is_asked(
    stub: Stub, file: Path, tmp_path: Path
) -> None:
    file.write_text("version: 1\nmodel: {}\n")
    said = llmgw("catalog", "apply", file)
    assert said.code == 1
    assert f"{file}:2:1" in said.err
    folder = tmp_path / "catalog.d"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text(CATALOG)
    said = llmgw("catalog", "apply", folder)
    assert said.code == 2
    assert "is 2 files, and control has one" in said.err
    assert stub.sent == []
    stub.answers["GET /api/v1/plan?leader=1"] = plan(problems=["c.yaml:1:1: no", "c.yaml:2:1: no"])
    said = llmgw("catalog", "apply", "--yes")
    assert (said.code, said.err) == (1, "llmgw: c.yaml:1:1: no\nc.yaml:2:1: no\n")
    assert stub.sent == []


def test_a48_a_yes_during_a_pause_says_what_stays(stub: Stub, file: Path) -> None:
    said = {"confirmed": DIGEST, "engines": ["a-1", "b-1"], "paused": "since noon"}
    stub.answers["POST /api/v1/confirm"] = said
    out = llmgw("confirm", DIGEST).out.splitlines()
    assert out[1:] == ["paused: a-1, b-1 stay until `llmgw resume`"]
    stub.answers["POST /api/v1/confirm"] = said | {"engines": []}
    out = llmgw("confirm", DIGEST).out.splitlines()
    assert out[1:] == ["paused: what would end stays until `llmgw resume`"]
    stub.answers |= {"POST /api/v1/plan?leader=1": plan(disturbs=1)}
    stub.answers |= {"PUT /api/v1/catalog": DONE | {"paused": "since noon"}}
    out = llmgw("catalog", "apply", file, "--yes").out.splitlines()
    assert out[-1] == "paused: a-1 stays until `llmgw resume`"
    stub.answers["POST /api/v1/plan?leader=1"] = plan()
    assert "paused" not in llmgw("catalog", "apply", file).out
