"""`llmgw down`: what it asks, and waits that end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.cli import box
from tests.cli.say import Said, llmgw
from tests.cli.stub import Json, Stub, Terminal


@pytest.fixture
def control(stub: Stub) -> Stub:
    shards = [
        {"shard": f"alpha-{n}/0", "node": n, "pid": 7, "state": "ready"} for n in ("box1", "box2")
    ]
    nodes = [{"node": "box1", "state": "ready"}, {"node": "box2", "state": "unreachable"}]
    status: Json = {"nodes": nodes, "replicas": [{"shards": shards}]}
    stub.answers["GET /api/v1/status"] = status
    return stub


def down(*words: str) -> Said:
    return llmgw("down", "--engines", *words)


def test_no_is_an_answer(control: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    said = down()
    assert said.code == 1
    assert "this ends 2 engines: alpha-box1/0 on box1 (pid 7)" in said.err
    assert "llmgw: not confirmed, nothing was ended\n" in said.err
    assert control.sent == []


def test_a_node_that_does_not_answer_is_not_waited_for(control: Stub) -> None:
    control.answers["GET /api/v1/status"]["replicas"][0]["shards"].pop(0)
    said = down("--yes")
    assert said.code == 3
    assert said.err == (
        "llmgw: cannot be ended, box2 does not answer: alpha-box2/0 on box2 (pid 7)\n"
        "hint: start the agent there and try again; `llmgw down` ends control and leaves them running\n"
    )
    assert control.sent == [("POST /api/v1/end", {})]


def test_nobody_is_there_to_end_the_engines() -> None:
    """They are not forgotten, and nothing else is ended in their place."""
    said = llmgw("down", "--engines", "--yes", "--control", "http://127.0.0.1:9")
    assert said.code == 3
    assert said.err.splitlines()[0] == (
        "llmgw: no control at 127.0.0.1:9: connection refused: it is control that ends engines; "
        "nothing was ended"
    )
    assert "`llmgw up` finds all that runs" in said.err


def test_a_gateway_that_goes_on_is_not_called_ended(
    control: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a request that waits for a start, and ends after that."""
    control.answers["POST /api/v1/shutdown"] = {"pid": 0, "gateway_pid": 4711}
    monkeypatch.setattr(box, "_wait_gone", lambda _peer, _pid: None)
    monkeypatch.setattr(box, "_here", lambda _peer, _pid: os.getpid())
    monkeypatch.setattr(box, "END_S", 0.0)
    said = llmgw("down")
    assert said.code == 0
    assert f"llmgw: the gateway (pid {os.getpid()}) still has requests" in said.err
    assert said.out == (
        "control has ended\nstill running: alpha-box1/0 on box1 (pid 7), alpha-box2/0 on box2 (pid 7)\n"
    )
    assert "`llmgw up` finds them again" in said.err


def test_somebody_elses_control_is_not_ended(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in which nothing runs was named, and a control of another one answers."""
    monkeypatch.setattr(box, "_wait_gone", lambda _peer, _pid: None)
    stub.answers["GET /api/v1/status"] = {"nodes": [], "replicas": []}
    theirs, ours = tmp_path / "theirs" / "control", tmp_path / "ours"
    theirs.mkdir(parents=True)
    place = stub.url.removeprefix("http://")
    fd = os.open(theirs, os.O_RDONLY | os.O_DIRECTORY)  # as a control holds it, for its lease
    try:
        said = llmgw("down", "--engines", "--yes", "--state-dir", str(ours))
        assert llmgw("down", "--state-dir", str(theirs.parent)).code == 0
        assert stub.sent.pop()[0] == "POST /api/v1/shutdown"
    finally:
        os.close(fd)
    assert said.code == 1
    assert said.err == (
        f"llmgw: control at {place} keeps its state in {theirs}, not {ours / 'control'}\n"
        f"hint: name it with --control {stub.url}, or drop --state-dir\n"
    )
    (ours / "control").mkdir(parents=True)
    monkeypatch.delenv("LLMGW_CONTROL")
    monkeypatch.setenv("LLMGW_STATE_DIR", str(ours))
    (ours / "control" / "url").write_text(f"{stub.url}\n")  # of one that ran there before
    (ours / "control" / "inventory.db.lock").write_text("999999999\n")
    said = llmgw("down")
    assert said.code == 1
    assert f"control at {place} keeps its state in another folder, not " in said.err
    assert stub.sent == []


def test_the_control_of_the_folder_is_found_and_ended(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the folder's own control is not at the usual address; one that is named needs no folder."""
    stub.answers["GET /api/v1/status"] = {"nodes": [], "replicas": []}
    monkeypatch.delenv("LLMGW_CONTROL")
    monkeypatch.setattr(box, "_wait_gone", lambda _peer, _pid: None)
    folder = tmp_path / "control"
    folder.mkdir()
    (folder / "url").write_text(f"{stub.url}\n")
    process = subprocess.Popen([sys.executable, "-c", "input()", "llmgw"], stdin=subprocess.PIPE)
    try:
        (folder / "inventory.db.lock").write_text(f"{process.pid}\n{stub.url}\n")
        assert llmgw("down", "--state-dir", str(tmp_path)).code == 0
    finally:
        process.communicate(b"\n")
    other = str(tmp_path / "other")
    assert llmgw("down", "--state-dir", other, "--control", stub.url).code == 0
    monkeypatch.setenv("LLMGW_CONTROL", stub.url)
    monkeypatch.setenv("LLMGW_STATE_DIR", other)
    assert llmgw("down").code == 0
    assert stub.sent == [("POST /api/v1/shutdown", {})] * 3


def test_what_the_end_waits_for_is_said_once_whatever_it_counts_down(
    control: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = control.answers["GET /api/v1/status"]
    waits = iter(("at most 9 s more", "at most 8 s more", "2 in flight", ""))

    def asleep(_: float) -> None:
        told = next(waits)
        status["stops_pending"] = [{"waits": told or None}, {"waits": told or None}, {}]
        if not told:
            status["replicas"][0]["shards"].clear()

    monkeypatch.setattr("llmgw.cli.box.time.sleep", asleep)
    monkeypatch.setattr("llmgw.cli.box._wait_gone", lambda *_: None)
    said = down("--yes")
    ended, control_too = said.out.splitlines()
    assert ended == "ended: alpha-box1/0 on box1 (pid 7), alpha-box2/0 on box2 (pid 7)"
    assert control_too.endswith(" ended")
    ending = [
        line.partition("(pid 7); ")[2] for line in said.err.splitlines() if "ending: " in line
    ]
    assert [line.rpartition("; ")[2] for line in ending][-2:] == ["at most 9 s more", "2 in flight"]
