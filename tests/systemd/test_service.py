"""What is said to a service manager and taken from it, with a socket in its place; no systemd is needed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from llmgw.systemd import VARIABLES, Service
from tests.agent.rig import Rig

#: A program that is passed sockets as systemd does it: from descriptor 3 on, with its own pid.
PASSED = """
import os, sys
os.environ["LISTEN_PID"] = os.environ["LISTEN_PID"] or str(os.getpid())
from llmgw.systemd import Service
service = Service()
found = service.listener("127.0.0.1", int(sys.argv[1]))
inherited = found and os.get_inheritable(found.fileno())
print(found and found.fileno(), inherited, service.let_go(), "LISTEN_FDS" in os.environ)
"""


class Manager:
    """Where NOTIFY_SOCKET points; each datagram with the number of descriptors that came along."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path.replace("@", "\0", 1))
        self._socket.settimeout(60)

    def heard(self) -> tuple[list[str], int]:
        data, fds, _, _ = socket.recv_fds(self._socket, 4096, 4)
        for fd in fds:
            os.close(fd)
        return data.decode().splitlines(), len(fds)

    def quiet(self) -> bool:
        self._socket.settimeout(0)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(60)
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@llmgw-test-{os.getpid()}"
    with closing(Manager(name)) as manager:
        yield manager


def test_without_a_manager_nothing_is_said() -> None:
    service = Service({})
    service.ready("serving")
    service.alive()
    with service.reloading():
        pass
    service.stopping("ends")
    assert service.listener("127.0.0.1", 8801) is None
    assert service.let_go() == []


def test_its_variables_are_not_passed_on(manager: Manager) -> None:
    """What a part starts is not the service: a gateway that says STOPPING=1 must not end control."""
    env = dict.fromkeys(VARIABLES, "1") | {"NOTIFY_SOCKET": manager.path, "HOME": "/root"}
    Service(env)
    assert env == {"HOME": "/root"}


def test_ready_reloading_and_stopping_are_said_when_they_are_true(manager: Manager) -> None:
    service = Service({"NOTIFY_SOCKET": manager.path})
    service.ready("serving 127.0.0.1:8801")
    assert manager.heard() == (["READY=1", "STATUS=serving 127.0.0.1:8801"], 0)
    with suppress(KeyError), service.reloading():
        said, _ = manager.heard()
        assert said[0] == "RELOADING=1"
        assert said[1].removeprefix("MONOTONIC_USEC=").isdecimal()
        raise KeyError
    assert manager.heard() == (["READY=1"], 0)
    service.stopping("ends")
    assert manager.heard() == (["STOPPING=1", "STATUS=ends"], 0)


def test_f18_alive_is_said_as_often_as_needed_and_no_more(manager: Manager) -> None:
    service = Service({"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "60000000"})
    assert service.watchdog_s == 60
    for _ in range(3):
        service.alive()
    assert manager.heard() == (["WATCHDOG=1"], 0)
    assert manager.quiet()


def test_a_slow_heart_beats_within_half_of_the_time_that_is_allowed() -> None:
    """sd_watchdog_enabled(3). Whoever sets WatchdogSec=3 for an agent shall not have it killed for being well."""
    within = [
        Service({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": usec}).beats_within(5.0)
        for usec in ("60000000", "3000000", "")
    ]
    assert within == [5.0, 1.5, 5.0]


@pytest.mark.parametrize(
    "env", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}]
)
def test_nobody_waits_for_a_sign_of_life(manager: Manager, env: dict[str, str]) -> None:
    service = Service({"NOTIFY_SOCKET": manager.path, **env})
    service.alive()
    assert service.watchdog_s == 0
    assert manager.quiet()


def test_a_manager_that_is_gone_or_does_not_listen_ends_nobody(tmp_path: Path) -> None:
    Service({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready("serving")


def test_a_listener_is_given_into_keeping(manager: Manager) -> None:
    service = Service({"NOTIFY_SOCKET": manager.path})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        service.keep("control", listener)
    assert manager.heard() == (["FDSTORE=1", "FDNAME=control", "FDPOLL=0"], 1)


def passed(*sockets: socket.socket, port: int, pid: str = "") -> str:
    """What a program makes of these, passed as descriptors 3, 4, …"""
    shell = "".join(f"exec {3 + n}<&{s.fileno()}; " for n, s in enumerate(sockets))
    done = subprocess.run(
        ["bash", "-c", f'{shell}exec "$@"', "bash", sys.executable, "-c", PASSED, str(port)],
        env={
            **os.environ,
            "LISTEN_FDS": str(len(sockets)),
            "LISTEN_PID": pid,
            "LISTEN_FDNAMES": "a:b",
        },
        pass_fds=[s.fileno() for s in sockets],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def two() -> Iterator[tuple[socket.socket, socket.socket]]:
    """High numbers, so that 3 and 4 are free to be made."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        yield one, other


def test_a_passed_listener_is_known_by_its_address(
    two: tuple[socket.socket, socket.socket],
) -> None:
    """Whatever its name and place; one that nobody asks for is closed and told, and none is passed on."""
    one, other = (s.getsockname()[1] for s in two)
    assert passed(*two, port=other) == f"4 False ['127.0.0.1:{one}'] False"


def test_sockets_that_were_passed_to_somebody_else_are_not_ours(
    two: tuple[socket.socket, socket.socket],
) -> None:
    port = two[0].getsockname()[1]
    assert passed(*two, port=port, pid="1") == "None None [] False"


def test_a_wedged_process_says_where_before_the_manager_ends_it(manager: Manager) -> None:
    """WatchdogSignal= is SIGABRT: the stack of every thread goes to stderr, and from there to the journal."""
    program = (
        "import os, signal; from llmgw.systemd import Service\n"
        "def hangs(): os.kill(os.getpid(), signal.SIGABRT)\n"
        "Service(); hangs()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "1000000"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == -signal.SIGABRT
    assert "in hangs" in done.stderr


def test_an_agent_says_ready_alive_and_stopping(tmp_path: Path, manager: Manager) -> None:
    """ "Alive" comes from the one loop that owns its state, with each beat of its heart (F60)."""
    with closing(Rig(tmp_path)) as rig:
        rig.start_agent(NOTIFY_SOCKET=manager.path, WATCHDOG_USEC="60000000").registered()
        said = [manager.heard()[0] for _ in range(2)]
        assert sorted(words[0] for words in said) == ["READY=1", "WATCHDOG=1"]
        assert rig.agent is not None
        rig.agent.terminate()
        assert manager.heard()[0][0] == "STOPPING=1"
        assert rig.ended()[0] == 0
