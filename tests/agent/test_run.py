"""What the agent needs at its start, and one clear error for each thing that is not there."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from llmgw.agent.run import run
from llmgw.agent.settings import AgentSettings
from llmgw.errors import LlmgwError
from scripts.ports import free_port
from tests.agent.rig import Rig


def settings(folder: Path, **changes: object) -> AgentSettings:
    base = {
        "controls": ("http://127.0.0.1:9",),
        "node": "box1",
        "state_dir": folder,
        "gpus": "none",
    }
    return AgentSettings(**{**base, "listen": "none", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words", "hint"),
    [
        ({"controls": ("box0:8801",)}, "--control box0:8801: not a URL", "http://"),
        ({"controls": ("http://[bad",)}, "--control http://[bad: not a URL", "http://"),
        ({"node": "box/1"}, "--node 'box/1' is no name", "box1"),
        ({"address": "0.0.0.0"}, "--address 0.0.0.0 is every address", "reach this node"),
        ({"token": "gr\u00fc\u00df"}, "characters that no header can carry", "LLMGW_NODE_TOKEN"),
        ({"listen": "0.0.0.0:8802"}, "no token is set", "LLMGW_NODE_TOKEN"),
        ({"listen": "box1.lan:8802"}, "no token is set", "--insecure"),
        (
            {"listen": "127.0.0.1:x"},
            "--listen 127.0.0.1:x: not HOST:PORT",
            "--listen",
        ),
        ({"listen": "127.0.0.1:99999"}, "not HOST:PORT", "--listen"),
        ({"gpus": "/no/such.json"}, "--gpus /no/such.json: cannot be read", "JSON list"),
        ({"state_dir": Path("/proc/agent")}, "state dir /proc/agent cannot be used", "--state-dir"),
    ],
)
def test_one_clear_error_each(
    tmp_path: Path, changes: dict[str, object], words: str, hint: str
) -> None:
    with pytest.raises(LlmgwError) as refused:
        run(settings(tmp_path / "agent", **changes))
    assert words in refused.value.message
    assert hint in refused.value.hint


def test_a_second_agent_on_the_same_state_dir(rig: Rig) -> None:
    rig.start_agent().registered()
    first = rig.agent
    assert first is not None
    code, said = rig.start_agent().ended()
    assert code == 1
    assert said == (
        f"error: state dir {rig.state_dir} is in use by another agent, pid {first.pid}\n"
        "hint: stop that one first, or give this one its own --state-dir\n"
    )
    assert first.poll() is None
    first.kill()
    first.wait()


def test_a_taken_listen_port(rig: Rig, tmp_path: Path) -> None:
    rig.start_agent().registered()
    other = Rig(tmp_path / "other", listen=rig.settings["listen"])
    (tmp_path / "other").mkdir()
    try:
        code, said = other.start_agent().ended()
    finally:
        other.close()
    assert code == 1
    assert (
        f"--listen {rig.settings['listen']} cannot be had: Address already in use by pid " in said
    )


def test_a_node_tells_what_it_is(tmp_path: Path) -> None:
    rig = Rig(
        tmp_path,
        address="127.0.0.2",
        listen=f"127.0.0.2:{free_port()}",
        pools=["fast", "default"],
        labels={"rack": "7"},
        fabrics={"ib0": {"address": "10.1.0.1", "hcas": ["mlx5_0"]}},
        power_w=1200.0,
        circuit="office",
        ports=[20000, 20100],
    )
    try:
        rig.start_agent().registered()
        report = rig.control.registers[0]
        assert (report["pools"], report["labels"]) == (["fast", "default"], {"rack": "7"})
        assert report["fabrics"] == {"ib0": {"address": "10.1.0.1", "hcas": ["mlx5_0"]}}
        assert (report["circuit"], report["capacity"]["power_w"]) == ("office", 1200.0)
        assert report["capacity"]["ports"] == [20000, 20100]
        assert report["capacity"]["host_memory"] > 0
        assert (report["address"], report["inspect"]) == ("127.0.0.2", "")
        assert report["gpus"] == []
        assert rig.ready()["endpoint"].startswith("http://127.0.0.2:")
    finally:
        rig.close()


def test_an_unknown_crash_point_is_refused(rig: Rig) -> None:
    code, said = rig.start_agent(crash_at="at-lunch").ended()
    assert code == 1
    assert "no such point" in said


def test_hup_is_heard_and_ends_nothing(rig: Rig) -> None:
    """Whoever has the daemons reload sends it to all of them."""
    rig.start_agent().registered()
    assert rig.agent is not None
    rig.agent.send_signal(signal.SIGHUP)
    rig.said("nothing to reload here")
    rig.ready()
    assert rig.agent.poll() is None


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
    ],
    ids=["headers", "trailers"],
)
def test_a_stranger_cannot_fill_the_agents_memory(rig: Rig, endless: bytes) -> None:
    rig.start_agent().registered()
    host, _, port = rig.settings["listen"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(endless)
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            sock.sendall(b"X: y\r\n" * 6_000_000)
