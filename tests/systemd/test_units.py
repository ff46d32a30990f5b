"""The shipped units under a real systemd: each is restarted and killed under load, and no engine notices (A3-A13, F47).

A control or an agent that goes fails no request; a gateway of its own lets new ones wait and finishes what it has.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from scripts.fleet import wait_for
from scripts.ports import free_port
from tests import beds
from tests.systemd.fleet import AGENT, CONTROL, FAST, GATEWAY, SLOW, UnitFleet
from tests.systemd.machine import ROOT, Machine
from tests.systemd.machine import UNITS as SHIPPED

pytestmark = beds.nspawn()

ENCLOSE = Path(__file__).with_name("enclose.py")
#: systemd 254 brought them; an older one says that it does not know them.
NEWER = ("RestartSteps", "RestartMaxDelaySec")


def test_systemd_has_nothing_to_say_of_the_units(fleet: UnitFleet) -> None:
    names = [f"/etc/systemd/system/{unit.name}" for unit in sorted(SHIPPED.iterdir())]
    said = fleet.machine.run("systemd-analyze", "verify", *names, check=False)
    ours = [line for line in said.splitlines() if "llmgw" in line]
    assert [line for line in ours if not any(key in line for key in NEWER)] == []


def test_f80_each_engine_has_a_scope_of_its_own(fleet: UnitFleet) -> None:
    machine, engines = fleet.machine, fleet.whole()
    scopes = {name: machine.cgroup(pid) for name, pid in engines.items()}
    for name, scope in scopes.items():
        assert scope.startswith(f"/llmgw.slice/llmgw-engines.slice/llmgw-engine-{name}-"), scope
        assert scope.endswith(".scope"), scope
    assert len(set(scopes.values())) == len(engines)
    pid = machine.main_pid(AGENT)
    assert machine.members(machine.cgroup(pid)) == [pid]


def test_an_engine_has_a_home_and_no_word_of_the_service(fleet: UnitFleet) -> None:
    """Caches lie below HOME, which a system service has only where its unit names a user."""
    pid = fleet.whole()[FAST]
    text = fleet.machine.run("cat", f"/proc/{pid}/environ")
    env = dict(item.split("=", 1) for item in text.split("\0") if "=" in item)
    assert env["HOME"] == "/root"
    assert not [n for n in env if n.startswith(("NOTIFY", "WATCHDOG", "LISTEN", "INVOCATION"))]


def test_an_engine_is_in_no_sandbox(fleet: UnitFleet) -> None:
    """What its agent's unit forbids it would inherit: GPUs, models below /home and podman need all of these."""
    machine, pid = fleet.machine, fleet.whole()[FAST]
    limits = ("Seccomp_filters", "NoNewPrivs", "CapBnd")  # those of the machine are nspawn's own
    ours, first = machine.status(pid), machine.status(1)
    assert {key: ours[key] for key in limits} == {key: first[key] for key in limits}
    assert len({machine.run("readlink", f"/proc/{n}/ns/mnt") for n in (pid, 1)}) == 1


def test_when_the_box_goes_down_the_agent_ends_before_its_engines(fleet: UnitFleet) -> None:
    """systemd.unit(5): what is Before= another ends after it."""
    scope = fleet.machine.cgroup(fleet.whole()[FAST]).rpartition("/")[2]
    assert f"{AGENT}.service" in fleet.machine.show(scope, "Before").split()


@pytest.mark.parametrize("unit", [CONTROL, AGENT])
def test_a3_restarted_under_load_no_request_fails(fleet: UnitFleet, unit: str) -> None:
    before, pid = fleet.whole(), fleet.machine.main_pid(unit)
    stream = fleet.stream(fleet.front).begun()
    with fleet.load(fleet.front) as load:
        fleet.machine.ctl("restart", unit)
        assert fleet.machine.main_pid(unit) != pid
        assert fleet.whole() == before
    assert load.failed == []
    assert stream.whole(), stream.ended


def test_a_gateway_restarted_under_load_finishes_its_streams_and_refuses_nobody(
    fleet: UnitFleet,
) -> None:
    pid = fleet.machine.main_pid(GATEWAY)
    stream = fleet.stream(fleet.side).begun()
    with fleet.load(fleet.side) as load:
        fleet.machine.ctl("restart", GATEWAY)
        assert fleet.machine.main_pid(GATEWAY) != pid
        answered = load.answered
        wait_for(lambda: load.answered > answered, "the new one answers")
    assert stream.whole(), stream.ended
    assert load.failed == []


@pytest.mark.parametrize("unit", [CONTROL, AGENT])
def test_f47_killed_under_load_no_request_fails_and_it_comes_back(
    fleet: UnitFleet, unit: str
) -> None:
    before = fleet.whole()
    stream = fleet.stream(fleet.front).begun()
    with fleet.load(fleet.front) as load:
        kill(fleet, unit)
        assert fleet.whole() == before
    assert load.failed == []
    assert stream.whole(), stream.ended


def test_a_killed_gateway_refuses_nobody_who_comes_after(fleet: UnitFleet) -> None:
    kill(fleet, GATEWAY, wait=False)
    assert "hello" in fleet.ask(fleet.side)


def test_with_control_and_its_gateway_both_killed_clients_wait(fleet: UnitFleet) -> None:
    """The listening socket is systemd's to keep; whoever connected is answered by the next gateway."""
    before, machine = fleet.whole(), fleet.machine
    machine.run("kill", "-KILL", machine.main_pid(CONTROL), *fleet.gateways())
    assert "hello" in fleet.ask(fleet.front)
    assert fleet.whole() == before


def test_a_gateway_that_does_not_answer_a_new_control_is_not_doubled(fleet: UnitFleet) -> None:
    """Both have the socket that systemd keeps: no bind fails, and a second one would share its clients."""
    before, machine, gateways = fleet.whole(), fleet.machine, fleet.gateways()
    machine.run("kill", "-STOP", *gateways)
    try:
        kill(fleet, CONTROL)
        time.sleep(
            3
        )  # the new one has asked in vain by then (handover.listener); nothing shows that
        assert fleet.gateways() == gateways
    finally:
        machine.run("kill", "-CONT", *gateways)
    assert fleet.whole() == before
    assert fleet.gateways() == gateways


def test_a_changed_address_is_served_and_kept_and_the_old_one_refused(fleet: UnitFleet) -> None:
    machine, before, after = fleet.machine, fleet.side, f"127.0.0.1:{free_port()}"
    try:
        fleet.serve_aside(after)
        assert "hello" in fleet.ask(after)
        with pytest.raises(httpx.ConnectError):
            fleet.ask(before)
        kill(fleet, GATEWAY, wait=False)
        assert "hello" in fleet.ask(after)
        assert f"was passed that --listen does not name  at={before}" in machine.journal(GATEWAY)
    finally:
        fleet.serve_aside(before)


def test_stopping_the_agent_leaves_the_engines(fleet: UnitFleet) -> None:
    before = fleet.whole()
    fleet.machine.ctl("stop", AGENT)
    assert "hello" in fleet.ask(fleet.front)
    assert fleet.whole() == before


def test_stopping_control_leaves_its_gateway_and_lets_go_of_its_own_address(
    fleet: UnitFleet,
) -> None:
    before = fleet.whole()
    fleet.machine.ctl("stop", CONTROL)
    assert "hello" in fleet.ask(fleet.front)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{fleet.control}/api/v1/status", trust_env=False)
    assert fleet.whole() == before


def test_reload_reads_the_catalog(fleet: UnitFleet) -> None:
    machine, pid = fleet.machine, fleet.machine.main_pid(CONTROL)
    catalog = fleet.catalog({"alpha": {"aliases": ["quick"]}})
    machine.put("/etc/llmgw/catalog.yaml", catalog)
    machine.ctl("reload", CONTROL)
    wait_for(lambda: fleet.answers(fleet.front, "quick"), "the alias", 20)
    assert (machine.show(CONTROL, "ActiveState"), machine.main_pid(CONTROL)) == ("active", pid)
    machine.put("/etc/llmgw/catalog.yaml", fleet.catalog())
    machine.ctl("reload", CONTROL)


def test_catalog_apply_may_write_in_the_sandbox(fleet: UnitFleet) -> None:
    machine = fleet.machine
    machine.put("/run/new.yaml", fleet.catalog({"alpha": {"aliases": ["brisk"]}}))
    to = f"LLMGW_CONTROL=http://{fleet.control}"
    machine.run("env", to, "llmgw", "catalog", "apply", "/run/new.yaml", "--yes")
    assert "brisk" in machine.run("cat", "/etc/llmgw/catalog.yaml")
    machine.put("/run/new.yaml", fleet.catalog())
    machine.run("env", to, "llmgw", "catalog", "apply", "/run/new.yaml", "--yes")


def test_a_socket_unit_starts_a_gateway_for_the_first_client(fleet: UnitFleet) -> None:
    """sd_listen_fds(3): whoever wants sockets from boot on writes such a unit."""
    machine, where = fleet.machine, f"127.0.0.1:{free_port()}"
    command = f"llmgw gateway --control http://{fleet.control} --listen {where} --state-dir /run/gw"
    service = f"[Service]\nType=notify\nExecStart={command}\n"
    machine.put("/etc/systemd/system/gw.socket", f"[Socket]\nListenStream={where}\n")
    machine.put("/etc/systemd/system/gw.service", service)
    machine.ctl("daemon-reload")
    machine.ctl("start", "gw.socket")
    try:
        assert machine.show("gw.service", "ActiveState") == "inactive"
        assert "hello" in fleet.ask(where)
        assert machine.show("gw.service", "ActiveState") == "active"
    finally:
        machine.ctl("stop", "gw.socket", "gw.service")


def test_f80_an_engine_without_memory_takes_nobody_along(fleet: UnitFleet) -> None:
    """It is killed by the kernel, seen by its agent and started again, in another scope."""
    machine, before = fleet.machine, fleet.whole()
    agent, scope = machine.main_pid(AGENT), machine.cgroup(before[FAST])
    with starved(machine, before[FAST]):
        with suppress(httpx.HTTPError):
            fleet.ask(fleet.front, question="x" * 3_000_000)  # for which it has no memory
        now = wait_for(lambda: changed(fleet, before), "another engine", 20)
    assert machine.main_pid(AGENT) == agent
    assert machine.cgroup(now[FAST]) != scope
    assert machine.cgroup(now[SLOW]) == machine.cgroup(before[SLOW])


@pytest.mark.parametrize("unit", [CONTROL, GATEWAY, AGENT])
def test_f18_f60_one_that_hangs_is_ended_and_comes_back(fleet: UnitFleet, unit: str) -> None:
    """Of an agent that hangs every engine runs on, in its own scope, and is adopted by the next one."""
    before, machine = fleet.whole(), fleet.machine
    pid, scopes = machine.main_pid(unit), {p: machine.cgroup(p) for p in before.values()}
    machine.run("kill", "-STOP", pid)
    assert "hello" in fleet.ask(fleet.front)
    wait_for(lambda: machine.main_pid(unit) not in (0, pid), f"another {unit}", 20)
    said = machine.journal(unit)
    assert "Watchdog timeout" in said
    assert "Fatal Python error: Aborted" in said  # and where it hung, by thread
    assert fleet.whole() == before
    assert {p: machine.cgroup(p) for p in before.values()} == scopes


def test_an_ordinary_user_has_scopes_where_his_manager_stays(fleet: UnitFleet) -> None:
    """Without lingering it would end at his logout, and every engine in it."""
    machine, name = fleet.machine, "llmgwtest"
    machine.run("systemd-sysusers", "--inline", f'u {name} - "a test" /tmp /bin/sh')
    uid = machine.run("id", "-u", name).strip()
    machine.ctl("start", f"user@{uid}")

    def enclosed() -> list[str]:
        program = ("env", f"PYTHONPATH={ROOT}", sys.executable, ENCLOSE)
        run = ("systemd-run", "--quiet", "--wait", "--pipe", "-p", f"User={name}")
        return machine.run(*run, *program).splitlines()

    where, _, why = enclosed()
    assert where.startswith("/system.slice/run-")
    assert f"loginctl enable-linger {name}" in why
    machine.run("mkdir", "-p", "/var/lib/systemd/linger")
    machine.run("touch", f"/var/lib/systemd/linger/{name}")
    where, count, why = enclosed()
    assert f"/user@{uid}.service/llmgw.slice/llmgw-engines.slice/llmgw-engine-" in where, why
    assert (count, why) == ("3", ""), "its children came along, whenever they were forked"
    machine.ctl("stop", f"user@{uid}")


def test_without_a_bus_an_engine_starts_all_the_same_and_is_moved_later(fleet: UnitFleet) -> None:
    machine, before = fleet.machine, fleet.whole()
    machine.ctl("stop", "dbus.socket", "dbus.service")
    try:
        machine.run("kill", "-KILL", before[FAST])
        now = wait_for(lambda: changed(fleet, before), "another engine")
        own = machine.cgroup(machine.main_pid(AGENT))
        assert machine.cgroup(now[FAST]) == own
        assert "no bus answers at /run/dbus/system_bus_socket" in machine.journal(AGENT)
        machine.ctl("restart", AGENT)  # KillMode=process: it lives on in the unit
        assert fleet.whole() == now
    finally:
        machine.ctl("start", "dbus.socket")
    machine.ctl("restart", AGENT)
    assert fleet.whole() == now
    scope = "/llmgw.slice/llmgw-engines.slice/"
    wait_for(lambda: machine.cgroup(now[FAST]).startswith(scope), "a scope after all")


def changed(fleet: UnitFleet, before: dict[str, int]) -> dict[str, int] | None:
    now = fleet.engines()
    return now if now and now[FAST] != before[FAST] and now[SLOW] == before[SLOW] else None


def kill(fleet: UnitFleet, unit: str, *, wait: bool = True) -> None:
    machine = fleet.machine
    pid = machine.main_pid(unit)
    machine.run("kill", "-KILL", pid)
    if wait:
        wait_for(lambda: machine.main_pid(unit) not in (0, pid), f"{unit} started again", 20)


@contextmanager
def starved(machine: Machine, pid: int) -> Iterator[None]:
    """No more memory for this process: of its scope, or, where memory is of cgroup v1, of a cgroup outside."""
    if "memory" in machine.run("cat", "/sys/fs/cgroup/cgroup.controllers", check=False).split():
        scope = machine.cgroup(pid).rpartition("/")[2]
        machine.ctl("set-property", "--runtime", scope, "MemoryMax=1M")
        yield
        return
    group = Path(f"/sys/fs/cgroup/memory/llmgw-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as e:
        pytest.skip(f"no memory controller, neither in the machine nor at {group.parent}: {e}")
    try:
        (group / "memory.limit_in_bytes").write_text("64K")
        (group / "cgroup.procs").write_text(str(machine.outside(pid)))
        yield
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "its end", 10)
        group.rmdir()
