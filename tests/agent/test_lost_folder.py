"""An agent whose whole state folder is lost: who it is, it learns of its engines, or it does not start (A1, A13).

Real agents and engines. Nothing here is ever signalled by an agent (F74).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent import bearers, lost, process
from llmgw.agent.identity import StateDirError
from scripts.ports import free_port
from tests.agent.rig import Rig, alive, until
from tests.beds import needs
from tests.engines.running import FAKE

TAKES = "it takes the id that its engines carry"


@pytest.fixture
def down(rig: Rig) -> Iterator[tuple[Rig, int, str]]:
    """An agent that was killed; the pid of its engine, which is ended in any case, and the id that it carries."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    rig.kill9()
    yield rig, pid, rig.control.registers[0]["node_id"]
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def marked(like: int, **env: str) -> Iterator[tuple[int, int]]:
    """Pid and port of an engine with the environment of another, and these."""
    port = free_port()
    with subprocess.Popen(
        [*FAKE, "--port", str(port)],
        env={**process.environ(like), "LLMGW_PORT": str(port), **env},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as engine:
        try:
            yield engine.pid, port
        finally:
            engine.kill()


def test_a1_the_folder_is_deleted(down: tuple[Rig, int, str]) -> None:
    """A2: the same node, 0 starts, 0 stops; and the next start needs no engine to know it."""
    rig, pid, node_id = down
    shutil.rmtree(rig.state_dir)
    rig.again()
    assert rig.control.registers[-1]["node_id"] == node_id
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == pid
    assert rig.starts() == {1}
    line = rig.said(TAKES)
    assert node_id in line
    assert f"pid {pid}" in line
    rig.kill9().again()
    assert rig.control.registers[-1]["node_id"] == node_id
    assert TAKES not in rig.log()


def test_a1_the_folder_is_another(down: tuple[Rig, int, str]) -> None:
    """A moved --state-dir: the old folder is there and says the same id."""
    rig, pid, node_id = down
    rig.settings["state_dir"] = str(rig.folder / "elsewhere")
    rig.again()
    assert rig.control.registers[-1]["node_id"] == node_id
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == pid


def test_killed_before_the_id_is_written_it_is_found_again(down: tuple[Rig, int, str]) -> None:
    rig, pid, node_id = down
    shutil.rmtree(rig.state_dir)
    for point in ("before-identity", "after-identity"):
        rig.start_agent(crash_at=point).crashed()
    rig.again()
    assert rig.control.registers[-1]["node_id"] == node_id
    assert rig.control.shard("alpha-1/0", "ready")["pid"] == pid


def test_two_ids_are_said_and_none_is_guessed(down: tuple[Rig, int, str]) -> None:
    rig, pid, node_id = down
    shutil.rmtree(rig.state_dir)
    with marked(pid, LLMGW_NODE_ID="another", LLMGW_SHARD="old-1/0") as (other, _):
        code, said = rig.start_agent().ended()
        assert code
        assert f"another (pid {other}" in said
        assert f"{node_id} (pid {pid}" in said
        assert "--node" in said
        assert not (rig.state_dir / "identity.json").exists()
        assert alive(pid)
        assert alive(other)
        # What it says to do.
        (line,) = (x for x in said.splitlines() if x.startswith("hint:"))
        command = line.partition("up: ")[2].partition("; else")[0].replace("another", node_id)
        subprocess.run(["sh", "-ec", command], check=True)
        rig.again()
        assert rig.control.shard("alpha-1/0", "ready")["pid"] == pid
        assert alive(other)


def test_a_living_agents_engines_are_its_own(rig: Rig) -> None:
    """F51: another folder, the same name and control: it does not start, whatever became of the other's folder."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    first, rig.agent = rig.agent, None
    assert first is not None
    try:
        rig.settings |= {"state_dir": str(rig.folder / "other"), "listen": "none"}
        code, said = rig.start_agent().ended()
        assert code
        assert "another agent of node box1" in said
        assert f"pid {pid}" in said
        rig.state_dir.rename(rig.folder / "moved")
        assert "another agent of node box1" in rig.start_agent().ended()[1]
        assert len(rig.control.registers) == 1
        assert alive(pid)
    finally:
        first.kill()
        first.wait()
        os.kill(pid, signal.SIGKILL)


def test_another_fleets_node_of_the_same_name_has_lost_nothing(down: tuple[Rig, int, str]) -> None:
    """Its control is another and its folder is there: its agent is merely down, and not our business."""
    rig, pid, node_id = down
    url = f"http://127.0.0.1:{free_port()}"
    found = list(bearers.bearers())
    assert lost.former("box1", [url], rig.folder / "other", own(found, node_id)) == ("", "")
    # The folder's place tells as well as control does: its control is another one now.
    shutil.rmtree(rig.state_dir)
    found = own(bearers.bearers(), node_id)
    assert lost.former("box1", [url], rig.state_dir, found) == (node_id, f"pid {pid}")
    assert lost.former("box1", [url], rig.folder / "other", found) == ("", "")
    assert lost.former("box2", [rig.control.url], rig.state_dir, found) == ("", "")
    # Neither is told: an older agent's engine that wrote no log of ours.
    untold = [b._replace(controls=frozenset(), home="") for b in found]
    with pytest.raises(StateDirError) as refused:
        lost.former("box1", [url], rig.state_dir, untold)
    assert f"{node_id} (pid {pid})" in refused.value.message
    assert url.removeprefix("http://") in refused.value.message


def own(found: Any, node_id: str) -> list[bearers.Bearer]:
    """Without those of other tests on this host."""
    return [b for b in found if b.node_id == node_id]


def test_a70_engines_of_a_node_that_is_no_more_are_shown_with_what_to_do(
    down: tuple[Rig, int, str],
) -> None:
    """Renamed with its folder lost: another node's engines, in no other list; their ports are held."""
    rig, pid, node_id = down
    port = int(process.environ(pid)["LLMGW_PORT"])
    shutil.rmtree(rig.state_dir)
    rig.settings["node"] = "box-renamed"
    rig.again()
    assert rig.control.registers[-1]["node_id"] != node_id

    def row() -> dict[str, Any] | None:
        told = [*rig.control.registers[-1:], *rig.control.events]
        rows = (f for message in told for f in message.get("foreign") or () if f["pid"] == pid)
        return next(rows, None)

    found = until(row, "its row")
    assert found["port"] == port
    assert found["why"].startswith(f"carries the marks of node box1, id {node_id}, which no agent")
    assert not found.get("by_hand")
    assert alive(pid)


@needs("unshare")
def test_an_agent_in_another_network_namespace_lives_too() -> None:
    code = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0llmgw-agent-far');"
    words = [
        "unshare",
        "--net",
        sys.executable,
        "-c",
        f"{code} print('up', flush=True); time.sleep(60)",
    ]
    assert not bearers.alive("far")
    with subprocess.Popen(words, stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout
            assert agent.stdout.readline() == b"up\n"
            assert bearers.alive("far")
            assert not bearers.alive("fa")
        finally:
            agent.kill()


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"LLMGW_NODE_ID": "n1"},
        {"LLMGW_NODE_ID": "../x", "LLMGW_SHARD": "a-1/0", "LLMGW_INCARNATION": "i"},
        {"LLMGW_NODE_ID": "n1", "LLMGW_SHARD": "a-1", "LLMGW_INCARNATION": "i"},
    ],
)
def test_what_no_agent_writes_is_nobodys(env: dict[str, str]) -> None:
    assert bearers.bearer("pid 1", env, "") is None


def test_a_control_is_known_by_its_place() -> None:
    """TLS changes the scheme, and a pin comes and goes."""
    urls = ["http://box0:8801", "https://BOX0:8801#sha256:00", "https://me:key@h:1/x", "nonsense"]
    assert bearers.places(urls) == ("box0:8801", "h:1")


def test_a_folder_is_intact_where_either_file_says_so(tmp_path: Path) -> None:
    assert not bearers.intact("", "n1")
    assert not bearers.intact(str(tmp_path), "n1")
    (tmp_path / "node.copy").write_text(json.dumps({"node_id": "n1"}))
    assert bearers.intact(str(tmp_path), "n1")
    assert not bearers.intact(str(tmp_path), "n2")
