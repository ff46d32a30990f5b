"""`llmgw doctor` where another agent's engines are on the box, and of which control it speaks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.agent.doctor.look import Owner
from llmgw.agent.doctor.place import place
from scripts.ports import free_port, free_range
from tests.agent.machine import Box, lines, machine
from tests.agent.rig import ROOT, Rig
from tests.agent.test_doctor import doctor


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return partial(machine, tmp_path)


@contextmanager
def stranger(port: int) -> Iterator[int]:
    """A process that listens, and is nobody's engine; gives its pid."""
    program = f"import socket; s=socket.create_server(('127.0.0.1',{port})); print('up',flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield other.pid
        other.communicate("\n")


def test_ports_of_another_agents_engines_are_that_agents(box: Box) -> None:
    """Of another state folder, say: whoever ends them ends what serves."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        lives = Owner("box1", Path("/x/agent"), 12, alive=True)
        node = box(ports=(port, port), others=lambda: {os.getpid(): lives})
        (said,) = lines(place, node, "ports")
        assert said == (
            f"warn ports {port}-{port}: {port} by engines of the agent of /x/agent (node box1, pid 12), which runs; 0 "
            "listened on by our engines - they are that agent's, leave them: `llmgw doctor --state-dir /x/agent` looks "
            "at it; give one of the two agents other --ports"
        )
        down = lives._replace(pid=0, alive=False)
        (said,) = lines(place, replace(node, others=lambda: {os.getpid(): down}), "ports")
        assert "of the agent of /x/agent (node box1), which does not run; " in said
        assert said.endswith("start it, and it takes them up: llmgw agent --state-dir /x/agent")
        lost = Owner("box1", None, 0, alive=True)
        (said,) = lines(place, replace(node, others=lambda: {os.getpid(): lost}), "ports")
        assert "by engines of another agent (node box1), which runs; " in said
        assert "they are that agent's, leave them; give one of the two" in said
        (said,) = lines(
            place, replace(node, others=lambda: {os.getpid(): lost._replace(alive=False)}), "ports"
        )
        assert said.endswith(
            "start that agent, and it takes them up; with its folder lost stop them by hand"
        )


def test_a_strangers_port_beside_another_agents(box: Box) -> None:
    (low, high) = free_range(2)
    owner = Owner("box1", Path("/x/agent"), 12, alive=True)
    with socket.create_server(("127.0.0.1", low)), stranger(low + 1) as pid:
        found = lines(place, box(ports=(low, high), others=lambda: {os.getpid(): owner}), "ports")
        assert len(found) == 2
        assert f"{low} by engines of the agent of /x/agent" in found[0]
        assert f"{low + 1} by pid {pid} (" in found[1]
        assert "end them, or give the agent other --ports" in found[1]


def test_an_agent_of_another_folder_is_named_where_none_has_this_one(box: Box) -> None:
    owner = Owner("box1", Path("/x/agent"), 12, alive=True)
    node = box(agent=False, others=lambda: {98: owner._replace(node="box2"), 99: owner})
    (said,) = lines(place, node, "agent")
    assert said.endswith(
        "one runs with state dir /x/agent (node box1, pid 12): `llmgw doctor --state-dir /x/agent` looks at it"
    )
    down = replace(node, others=lambda: {99: owner._replace(alive=False)})
    assert lines(place, down, "agent")[0].endswith("start it: llmgw agent, or name its --state-dir")


def test_engines_of_an_agent_with_another_folder(tmp_path: Path) -> None:
    """`llmgw doctor` without that folder's name: nobody is told to end what serves."""
    rig = Rig(tmp_path)
    try:
        rig.start_agent().registered()
        port, pid = rig.ready()["port"], rig.agent.pid if rig.agent else 0
        here = tmp_path / "other"
        words = ["--state-dir", str(here), "--ports", f"{port}-{port}", "--gpus", "none"]
        said = doctor(*words, "--control", rig.control.url).stdout
        assert "end them" not in said
        assert (
            f"by engines of the agent of {rig.state_dir} (node box1, pid {pid}), which runs" in said
        )
        assert "one runs with state dir " in said  # that of another test, perhaps
        rig.kill9()
        said = doctor(*words, "--control", rig.control.url).stdout
        assert f"of the agent of {rig.state_dir} (node box1), which does not run" in said
        assert not (here / "agent.lock").exists()
    finally:
        rig.close()


def test_it_speaks_of_the_control_that_status_asks(tmp_path: Path) -> None:
    """The one of the same folder, wherever it listens; and of the one that the agent which runs was told of."""
    url = f"http://127.0.0.1:{free_port()}"
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "url").write_text(f"{url}\n")
    env = {"LLMGW_STATE_DIR": str(tmp_path), "LLMGW_CONTROL": ""}
    assert f"fail  control    {url} does not answer" in doctor("--gpus", "none", **env).stdout
    rig = Rig(tmp_path)
    words = ["agent", "--state-dir", str(rig.state_dir), "--control", rig.control.url]
    words += ["--listen", "none", "--gpus", "none", "--node", "box1"]
    with rig.log_path().open("w") as log:
        rig.agent = subprocess.Popen(
            [sys.executable, "-m", "llmgw", *words], cwd=ROOT, stdout=log, stderr=log, text=True
        )
    try:
        rig.registered()
        said = doctor("--gpus", "none", **env).stdout
        assert f"ok    control    {rig.control.url} answers" in said
        assert (
            f"warn  control    llmgw on this box asks {url}, as control here was reached last"
            in said
        )
        assert str(tmp_path / "control" / "url") in said
    finally:
        rig.close()
