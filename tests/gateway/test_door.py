"""How a new control gets the listening socket back, over a real unix socket."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from llmgw import handover
from llmgw.errors import LlmgwError, UnreachableError
from llmgw.gateway.door import Door, StateDir, holder
from llmgw.handover import Hello
from tests.gateway.rig import run


class Opened:
    def __init__(self) -> None:
        self.stops = self.ways_given = 0
        self.listener = socket.create_server(("127.0.0.1", 0))

    def hello(self) -> Hello:
        return Hello(
            pid=os.getpid(), gateway="g", version="0.1.0", table=7, listen="127.0.0.1:8800"
        )

    def stop(self) -> None:
        self.stops += 1

    def give_way(self) -> None:
        self.ways_given += 1


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Opened]:
    world = Opened()
    state_dir = StateDir(folder)

    door = Door(state_dir, world.listener, world, "node-token")
    try:
        yield world
    finally:
        door.close()
        state_dir.release()
        world.listener.close()


def test_hello(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path):
            said = await asyncio.to_thread(handover.hello, tmp_path)
            assert said == Hello(
                pid=os.getpid(), gateway="g", version="0.1.0", table=7, listen="127.0.0.1:8800"
            )
            assert said.token == ""

    run(scenario())


def test_the_listener_and_the_token_are_handed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as world:
            got = await asyncio.to_thread(handover.listener, tmp_path)
            assert got.token == "node-token"
            assert got.gateway.pid == os.getpid()
            address = world.listener.getsockname()
            assert got.socket.getsockname() == address
            assert got.socket.fileno() != world.listener.fileno()
            assert not os.get_inheritable(got.socket.fileno())
            world.listener.close()
            with socket.create_connection(address):
                conn, _ = got.socket.accept()
                conn.close()
            got.socket.close()

    run(scenario())


def test_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as world:
            said = await asyncio.to_thread(handover.stop, tmp_path)
            assert said.pid == os.getpid()
            assert world.stops == 1

    run(scenario())


@pytest.mark.parametrize("line", [b'{"op":"dance"}\n', b"nonsense\n", b"[]\n"])
def test_anything_else_is_refused(tmp_path: Path, line: bytes) -> None:
    async def scenario() -> None:
        async with opened(tmp_path):

            def ask() -> bytes:
                with socket.socket(socket.AF_UNIX) as sock:
                    with handover.short(tmp_path / handover.NAME) as name:
                        sock.connect(name)
                    sock.sendall(line)
                    return sock.recv(4096)

            assert b"unknown request" in await asyncio.to_thread(ask)
            assert (await asyncio.to_thread(handover.hello, tmp_path)).gateway == "g"

    run(scenario())


def test_one_who_says_nothing_or_leaves_holds_nobody_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path):
            with socket.socket(socket.AF_UNIX) as mute, socket.socket(socket.AF_UNIX) as leaves:
                with handover.short(tmp_path / handover.NAME) as name:
                    mute.connect(name)
                    leaves.connect(name)
                leaves.sendall(b'{"op":')
                leaves.close()
                assert (await asyncio.to_thread(handover.hello, tmp_path)).gateway == "g"

    run(scenario())


ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user for once")
NOBODY = 65534
ASK_AS_NOBODY = """
import os, socket, sys
os.setuid(65534)
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.sendall(b'{"op":"%s"}\\n' % sys.argv[2].encode())
line, fds, _, _ = socket.recv_fds(sock, 4096, 4)
print(len(fds), line.decode())
"""
SERVE_AS_NOBODY = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
os.setuid(65534)
sock.listen()  # its credentials are those of this moment
print("ready", flush=True)
conn, _ = sock.accept()
conn.recv(100)
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """pytest's own folders are closed to other users."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def ask_as_nobody(folder: Path, op: str) -> subprocess.CompletedProcess[str]:
    folder.chmod(0o755)
    (folder / handover.NAME).chmod(0o777)
    command = [sys.executable, "-c", ASK_AS_NOBODY, str(folder / handover.NAME), op]
    return subprocess.run(command, capture_output=True, text=True, check=True)


@ROOT
@pytest.mark.parametrize("op", ["hello", "listener", "stop"])
def test_another_user_gets_nothing(public_folder: Path, op: str) -> None:
    async def scenario() -> None:
        async with opened(public_folder) as world:
            done = await asyncio.to_thread(ask_as_nobody, public_folder, op)
            assert done.stdout.startswith("0 ")
            assert f"uid {NOBODY} may not ask" in done.stdout
            assert "node-token" not in done.stdout
            assert world.stops == 0

    run(scenario())


@ROOT
def test_a_socket_is_not_taken_from_another_user(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE_AS_NOBODY, str(tmp_path / handover.NAME)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        with pytest.raises(LlmgwError, match=f"is served by uid {NOBODY}") as e:
            handover.listener(tmp_path)
        assert e.value.hint


def test_nobody_answers(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UnreachableError, match="no gateway answers at") as e:
            handover.hello(folder)
        assert e.value.hint


def test_one_who_hangs_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        with handover.short(tmp_path / handover.NAME) as name:
            sock.bind(name)
        sock.listen()
        with pytest.raises(UnreachableError, match="timed out"):
            handover.hello(tmp_path, timeout_s=0.05)


def test_a_long_folder_name_is_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)

    async def scenario() -> None:
        async with opened(deep):
            assert (await asyncio.to_thread(handover.hello, deep)).gateway == "g"
            assert (deep / handover.NAME).is_socket()
            assert deep.stat().st_mode & 0o777 == 0o700
        assert not (deep / handover.NAME).exists()

    run(scenario())


def test_a_socket_left_by_a_killed_gateway_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        with (
            socket.socket(socket.AF_UNIX) as left,
            handover.short(tmp_path / handover.NAME) as name,
        ):
            left.bind(name)
        async with opened(tmp_path):
            assert (await asyncio.to_thread(handover.hello, tmp_path)).gateway == "g"

    run(scenario())


def test_one_gateway_per_folder(tmp_path: Path) -> None:
    first = StateDir(tmp_path)
    with pytest.raises(LlmgwError, match=f"in use by the gateway with pid {os.getpid()}") as e:
        StateDir(tmp_path)
    assert e.value.hint
    first.release()
    StateDir(tmp_path).release()


def test_a_full_disk_does_not_keep_a_gateway_from_serving(tmp_path: Path) -> None:
    """The pid in its lock is for people: one that could not write it was a bug report, exit 70."""
    code = (
        "import resource, sys; from pathlib import Path; from llmgw.gateway.door import StateDir; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); StateDir(Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LlmgwError, match="cannot be used"):
        StateDir(tmp_path / "file")


def test_an_orphan_of_an_older_family_leaves_a_free_place_as_it_is(tmp_path: Path) -> None:
    """It signed it as ended, and the workers of the gateway that had just been killed all ended with it."""
    StateDir(tmp_path, family="younger").release()
    looks = StateDir(tmp_path, family="older", signs=False)
    assert looks.before == (str(os.getpid()), "younger")
    assert holder(tmp_path) == looks.before, "also while it looks"
    looks.release()
    assert holder(tmp_path) == (str(os.getpid()), "younger")
