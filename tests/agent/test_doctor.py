"""`llmgw doctor`: GPUs, state dir, agent, kill mode and ports; and one real agent with a real engine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.agent.doctor import doors, examine
from llmgw.agent.doctor.devices import devices
from llmgw.agent.doctor.look import Cards as Found
from llmgw.agent.doctor.look import there
from llmgw.agent.doctor.place import place
from llmgw.core.types.messages import Gpu
from scripts.ports import free_port
from tests.agent.cards import Cards
from tests.agent.machine import AGENT, Box, lines, machine
from tests.agent.rig import ROOT, Rig

CARD = Gpu(uuid="GPU-1", index=0, name="RTX 3090", memory_bytes=24 << 30, driver="580.1")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return partial(machine, tmp_path)


def test_on_a_healthy_node_nothing_fails(box: Box) -> None:
    found = examine(box())
    assert {c.level for c in found} == {"ok", "skip"}, found
    assert all(c.hint for c in examine(box(agent=False)) if c.level in ("warn", "fail"))


# ------------------------------------------------ GPUs


def test_gpus_with_driver_and_memory(box: Box) -> None:
    node = box(cards=lambda: Found((CARD,)))
    assert lines(devices, node, "gpu") == ["ok driver 580.1: 0 RTX 3090 24.0 GiB"]
    assert lines(devices, node, "persistence") == []


@pytest.mark.parametrize(
    ("gpus", "cards", "said"),
    [
        ("none", Found(()), "skip GPUs are left out (--gpus none)"),
        ("auto", Found(()), "skip there is no GPU here, engines run on the CPU"),
        ("auto", Found(None, "its driver does not answer"), "fail its driver does not answer - "),
        (
            "auto",
            Found((replace(CARD, healthy=False, lost=True, trouble="fell off the bus"),)),
            "fail GPU 0 (GPU-1): fell off the bus - ",
        ),
        (
            "auto",
            Found((replace(CARD, trouble="rows are remapped"),)),
            "warn GPU 0 (GPU-1): rows are remapped - ",
        ),
    ],
)
def test_gpus_that_cannot_be_used_are_named(box: Box, gpus: str, cards: Found, said: str) -> None:
    """F59, F72."""
    assert lines(devices, box(gpus=gpus, cards=lambda: cards), "gpu")[-1].startswith(said)


def test_persistence_mode_that_is_off_is_said(box: Box) -> None:
    node = box(cards=lambda: Found((CARD,), unheld=(0, 2)))
    (said,) = lines(devices, node, "persistence")
    assert said.startswith("warn persistence mode is off on GPU 0, 2")


@pytest.mark.parametrize(
    ("there", "open_to_us", "said"),
    [
        ((), True, "skip there is no /dev/nvidia* and no /dev/kfd"),
        (("nvidiactl", "nvidia-uvm", "nvidia0"), True, "ok user 7 may use /dev/nvidiactl, /dev/nv"),
        (("nvidiactl", "nvidia0"), True, "fail /dev/nvidia-uvm is not there - nvidia-modprobe"),
        (("nvidiactl", "nvidia-uvm", "nvidia0"), False, "fail user 7 may not read and write /dev/"),
        (("kfd", "dri/renderD128"), False, "fail user 7 may not read and write /dev/kfd (mode"),
        (("dri/renderD128",), False, "skip there is no /dev/nvidia*"),
    ],
)
def test_device_nodes_and_who_may_open_them(
    box: Box, there: tuple[str, ...], open_to_us: bool, said: str
) -> None:
    node = box({f"dev/{name}": "" for name in there}, user=7, may=lambda _p, _m: open_to_us)
    assert lines(devices, node, "devices")[0].startswith(said)


# ------------------------------------------------ state dir, agent, kill mode


def test_a_state_dir_in_order(box: Box) -> None:
    (said,) = lines(place, box(), "state")
    assert said.startswith("ok ")
    assert "mode 700, on ext4, " in said
    assert said.endswith(" GiB free")


def test_a_state_dir_that_is_not_there(box: Box, tmp_path: Path) -> None:
    node = box(state_dir=tmp_path / "x" / "agent")
    assert lines(place, node, "state")[0].startswith("ok ")
    closed = replace(node, may=lambda _p, _m: False, user=7)
    assert "fail " in lines(place, closed, "state")[0]
    assert "user 7 may not make it in " in lines(place, closed, "state")[0]


def test_a_state_dir_that_is_a_file_or_cannot_be_looked_for(box: Box, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert lines(place, box(state_dir=tmp_path / "file"), "state")[0].startswith("fail ")
    assert not there(Path("/" + "x" * 5000))


def test_a_state_dir_of_somebody_else(box: Box) -> None:
    node = box(may=lambda _p, _m: False, user=7)
    assert lines(place, node, "state")[0].startswith("fail user 7 may not write ")


def test_a_state_dir_that_others_may_read(box: Box) -> None:
    node = box()
    node.state_dir.chmod(0o755)
    assert lines(place, node, "state")[0].startswith(f"warn {node.state_dir} has mode 755")


@pytest.mark.parametrize("kind", ["tmpfs", "nfs4"])
def test_a_state_dir_on_a_file_system_that_forgets(box: Box, kind: str) -> None:
    mounts = f"/dev/sda1 / ext4 rw 0 0\nx {box().state_dir.parent} {kind} rw 0 0\n"
    (said,) = lines(place, box({"proc/mounts": mounts}), "state")
    assert said.startswith("warn ")
    assert f"on {kind}, " in said


def test_a_full_disk(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(box().state_dir)
    full = os.statvfs_result((*real[:4], 10, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    (said,) = lines(place, box(), "state")
    assert said.startswith("warn ")
    assert "0.0 GiB free - make room" in said


def test_whether_an_agent_runs_is_told_by_its_lock(box: Box) -> None:
    assert lines(place, box(), "agent")[0].startswith(f"ok pid {AGENT} runs with state dir ")
    assert lines(place, box(agent=False), "agent")[0].startswith("warn no agent runs with ")
    assert lines(place, box(agent=False), "kill-mode") == [
        "skip no agent runs, so it is in no unit"
    ]


UNIT = "/system.slice/llmgw-agent.service"


@pytest.mark.parametrize(
    ("engine", "mode", "said"),
    [
        (UNIT, "control-group", "fail a/0 run in llmgw-agent.service, KillMode=control-group ends"),
        (f"{UNIT}/sub", "mixed", "fail a/0 run in llmgw-agent.service, KillMode=mixed ends them"),
        (UNIT, "process", "ok a/0 run in llmgw-agent.service, KillMode=process leaves engines"),
        (UNIT, "", "warn a/0 run in llmgw-agent.service, and systemd does not say its KillMode - "),
        ("/llmgw-engines.slice/e.scope", "control-group", "ok a/0 run outside of llmgw-agent.serv"),
        ("", "control-group", "warn the agent is llmgw-agent.service, no engine runs; KillMode=c"),
        ("", "process", "ok the agent is llmgw-agent.service, no engine runs, KillMode=process"),
    ],
)
def test_what_the_end_of_the_agents_unit_would_end(
    box: Box, engine: str, mode: str, said: str
) -> None:
    """F47: `systemctl restart` of the agent must not take the engines along."""
    asked = []

    def tell(argv: tuple[str, ...]) -> str:
        asked.append(argv)
        return mode

    files = {f"proc/{AGENT}/cgroup": f"0::{UNIT}\n", "proc/99/cgroup": f"0::{engine}\n"}
    node = box(files, tell=tell, engines=lambda: {99: "a/0"} if engine else {})
    assert lines(place, node, "kill-mode")[0].startswith(said)
    show = ("systemctl", "show", "llmgw-agent.service", "--property=KillMode", "--value")
    assert asked in ([], [show])


def test_a_users_own_unit_is_asked_of_the_users_manager(box: Box) -> None:
    asked = []
    where = "/user.slice/user-7.slice/user@7.service/app.slice/llmgw-agent.service"

    def tell(argv: tuple[str, ...]) -> str:
        asked.append(argv)
        return ""

    node = box({f"proc/{AGENT}/cgroup": f"0::{where}\n"}, tell=tell)
    assert lines(place, node, "kill-mode")[0].startswith("warn ")
    assert asked[0][:2] == ("systemctl", "--user")


def test_an_agent_in_no_service(box: Box) -> None:
    said = "ok the agent is in no service (/user.slice/session-1.scope)"
    assert lines(place, box(), "kill-mode") == [said]


# ------------------------------------------------ ports


def test_ports_taken_by_others_and_by_ours(box: Box) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        (said,) = lines(place, box(ports=(port, port)), "ports")
        assert said.startswith(f"warn ports {port}-{port}: {port} by pid {os.getpid()} (")
        node = box(ports=(port, port), engines=lambda: {os.getpid(): "a/0"})
        assert lines(place, node, "ports") == [
            f"ok ports {port}-{port}: 1 listened on by our engines, the others are free"
        ]


SYS = "proc/sys/net/ipv4/"


@pytest.mark.parametrize(
    ("reserved", "said"),
    [
        ("", ["warn ports 18000-18999: the kernel lends 18500-18999 to clients' connections"]),
        ("18400-18700,20000", ["warn ports 18000-18999: the kernel lends 18701-18999 to clients'"]),
        ("18000-18999", []),
    ],
)
def test_ports_that_the_kernel_gives_to_clients(box: Box, reserved: str, said: list[str]) -> None:
    files = {
        f"{SYS}ip_local_port_range": "18500\t60999\n",
        f"{SYS}ip_local_reserved_ports": f"{reserved}\n",
    }
    found = lines(place, box(files, ports=(18000, 18999)), "ports")[1:]
    assert len(found) == len(said)
    assert all(f.startswith(s) for f, s in zip(found, said, strict=True))


def test_ports_that_only_root_may_have(box: Box) -> None:
    files = {f"{SYS}ip_unprivileged_port_start": "1024\n"}
    node = box(files, ports=(1000, 1001), user=7)
    assert lines(place, node, "ports")[-1].startswith("fail ports 1000-1001: below 1024 only root")
    assert not any("root" in x for x in lines(place, replace(node, user=0), "ports"))


# ------------------------------------------------ the real doors


def test_the_kernel_is_asked_about_its_clock_and_not_changed() -> None:
    assert doors.unsynchronised() in (True, False, None)


def test_commands_that_fail_or_are_not_there_say_nothing() -> None:
    assert doors.tell(("sh", "-c", "echo process; cat")) == "process"
    assert doors.tell(("sh", "-c", "echo x; exit 1")) == ""
    assert doors.tell(("/no/such/program",)) == ""


def test_nobody_there_is_an_answer_too() -> None:
    port = free_port()
    answer = doors.ask(f"http://127.0.0.1:{port}", "/healthz", "t0k")
    assert (answer.status, bool(answer.error)) == (0, True)
    assert doors.ask("http://[", "/healthz", "").error


def doctor(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "llmgw", "doctor", *words]
    return subprocess.run(
        argv,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "LLMGW_NODE_TOKEN": "t0k", **env},
    )


def test_the_real_binding_to_nvml(cards: Cards, tmp_path: Path) -> None:
    """F72: one card without persistence mode, one that does not answer any more."""
    cards.set(0, persistence=0, name="RTX 3090")
    cards.set(1, mem_error=15)
    said = doctor("--state-dir", str(tmp_path), **cards.env).stdout.splitlines()
    assert any("0 RTX 3090 24.0 GiB" in x and x.startswith("ok    gpu ") for x in said), said
    assert any(
        x.startswith("fail  gpu ") and "GPU 1 (GPU-bbbb): it does not answer" in x for x in said
    )
    assert any("persistence mode is off on GPU 0: " in x for x in said)


def test_a_real_node_through_a_pipe(tmp_path: Path) -> None:
    """With an agent and one of its engines; nothing of theirs is changed by the look."""
    rig = Rig(tmp_path, token="t0k", control_token="t0k")
    try:
        rig.start_agent().registered()
        before = rig.ready()
        port = str(before["port"])
        broken = tmp_path / "catalog.yaml"
        broken.write_text("models: 3\n")
        where = ["--state-dir", str(rig.state_dir), "--control", rig.control.url]
        where += ["--ports", f"{port}-{port}", "--gpus", "none", "--catalog"]
        done = doctor(*where, str(tmp_path / "none.yaml"))
        said = done.stdout.splitlines()
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        pid = rig.agent.pid if rig.agent else 0
        assert f"ok    agent      pid {pid} runs with state dir {rig.state_dir}" in said
        assert (
            f"ok    ports      ports {port}-{port}: 1 listened on by our engines, the others are free"
            in said
        )
        assert f"ok    token      {rig.control.url} takes the node token" in said
        done = doctor(*where, str(broken), "-o", "json")
        found = json.loads(done.stdout)
        assert (done.returncode, found["exit_code"], found["schema"]) == (1, 1, "llmgw.doctor/1")
        failed = [c for c in found["checks"] if c["level"] == "fail"]
        assert [c["name"] for c in failed] == ["catalog"]
        assert failed[0]["try"] == f"llmgw catalog check {broken}"
        assert rig.engine_pids() == [before["pid"]]
    finally:
        rig.close()
