"""Free, busy, and whose: with real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmgw.agent import diag, ports
from scripts.ports import free_port


def listening(port: int = 0, *, reuse_port: bool = False, host: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host, port or free_port()))  # none that the kernel may give to a client meanwhile
    sock.listen()
    return sock


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def test_a_listener_makes_a_port_busy_whatever_its_options() -> None:
    """A45: SO_REUSEPORT, SO_REUSEADDR, one address or all."""
    for sock in (listening(), listening(reuse_port=True), listening(host="0.0.0.0")):
        with sock:
            port = port_of(sock)
            assert list(ports.busy([port, free_port()])) == [port]
            assert f"pid {os.getpid()} (" in ports.busy([port])[port]
        assert ports.free(port)


def test_connections_of_a_dead_server_do_not() -> None:
    """TIME_WAIT: without this no engine that had clients could be restarted in place."""
    with listening() as server:
        port = port_of(server)
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        served.close()  # the server closes first: the wait is on its side
    client.close()
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("", port))
    assert ports.free(port)
    with listening(port):
        assert not ports.free(port)


def test_nor_those_that_the_other_end_still_keeps() -> None:
    """FIN_WAIT2: the head of an RPC group has not noticed yet that its worker was killed (A34)."""
    with listening() as server:
        port = port_of(server)
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        served.close()
    with client:
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):
            plain.bind(("", port))
        assert ports.free(port)


def test_the_kernel_is_not_asked_what_is_left_on_a_port_of_an_engine_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P9: a swap waited milliseconds for that list. For two minutes; and a listener makes it busy as ever."""
    with listening() as server:
        port = port_of(server)
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        served.close()
    client.close()
    asked: list[int] = []

    def listed(port: int) -> list[ports.Socket]:
        asked.append(port)
        return []

    monkeypatch.setattr(ports, "of_port", listed)
    monkeypatch.setattr(ports, "_left", {})
    assert not ports.free(port)
    assert asked == [port]
    ports.left([port])
    assert ports.free(port)
    with listening(port):
        assert not ports.free(port)
    assert asked == [port]
    now = time.monotonic() + ports.ORPHANS_S
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert not ports.free(port)
    assert asked == [port, port]


def test_whose_listener() -> None:
    with listening(reuse_port=True) as ours:
        port = port_of(ours)
        assert ports.owner(port, "127.0.0.1", [os.getpid()]) == ("ours", "")
        assert ports.owner(port, "localhost", [os.getpid()]) == ("ours", "")
        kind, who = ports.owner(port, "127.0.0.1", [1])
        assert kind == "other"
        assert f"its listener is pid {os.getpid()} (" in who
        program = (
            "import socket,sys; s=socket.socket(); s.setsockopt(1,15,1); "
            f"s.bind(('127.0.0.1',{port})); s.listen(); print('up',flush=True); input()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            kind, who = ports.owner(port, "127.0.0.1", [os.getpid()])
            assert (kind, f"pid {other.pid} " in who) == ("other", True)
            other.communicate("\n")
    assert ports.owner(port, "127.0.0.1", [os.getpid()]) == ("", "")


def test_the_closest_binding_counts() -> None:
    """A stranger on all addresses does not get what comes to ours."""
    with listening(reuse_port=True) as ours:
        port = port_of(ours)
        with listening(port, reuse_port=True, host="0.0.0.0"):
            assert len(ports.listeners(port, "127.0.0.1")) == 1
            assert ports.owner(port, "127.0.0.1", [os.getpid()]) == ("ours", "")


def by_states(port: int) -> set[tuple[str, str, int]]:
    return {(s.address, s.state, s.inode) for s in ports.of_port(port)}


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", "AF_INET"), ("::1", "AF_INET6")])
def test_the_kernel_and_its_tables_say_the_same(
    monkeypatch: pytest.MonkeyPatch, host: str, family: str
) -> None:
    """A listener, both ends of a connection, and one whose process is gone (sock_diag(7), proc_net_tcp(5))."""
    if family == "AF_INET6" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with socket.create_server((host, free_port()), family=getattr(socket, family)) as server:
        port = port_of(server)
        kept = socket.create_connection((host, port))
        left = socket.create_connection((host, port))
        accepted = [server.accept()[0] for _ in range(2)]
        accepted[1].close()
        with kept, left, accepted[0]:
            asked = by_states(port)
            give_up = time.monotonic() + 5
            while not any(state == "05" for _, state, _ in asked) and time.monotonic() < give_up:
                asked = by_states(port)  # its end is acknowledged by the kernel in its own time
            with monkeypatch.context() as deaf:
                deaf.setattr(diag, "sockets", no_answer)
                assert by_states(port) == asked
            assert {state for _, state, _ in asked} == {"0A", "01", "05"}
            assert {address for address, _, _ in asked} == {host}
            listening = [s.inode for s in diag.sockets(port, diag.LISTENING)]
            assert listening == [os.fstat(server.fileno()).st_ino]


def test_one_question_tells_of_both_families() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with socket.create_server(("127.0.0.1", free_port())) as four:
        port = port_of(four)
        with socket.create_server(("::1", port), family=socket.AF_INET6) as six:
            wanted = {(s.getsockname()[0], os.fstat(s.fileno()).st_ino) for s in (four, six)}
            found = diag.sockets(port, diag.LISTENING)
            assert {(f.address, f.inode) for f in found} == wanted


def test_a_kernel_that_cannot_tell_is_told_apart_from_no_socket() -> None:
    with pytest.raises(OSError, match="sock_diag"):
        list(diag._dump(FakeLine(-2), 1, diag.ALL))  # type: ignore[arg-type]


class FakeLine:
    """Answers as a kernel without inet_diag: an error, with its number."""

    def __init__(self, error: int) -> None:
        self.answer = struct.pack("=IHHIIi", 20, diag.ERROR, 0, 0, 0, error)

    def send(self, _: bytes) -> None: ...

    def recv(self, _: int) -> bytes:
        return self.answer


def no_answer(*_: object) -> list[diag.Found]:
    raise OSError(2, "no inet_diag")


def test_one_turn_of_the_event_loop_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty answers together where the tables must be read; what changes by the next turn is seen in it."""
    monkeypatch.setattr(diag, "sockets", no_answer)
    reads: list[Path] = []

    def read(path: Path) -> str:
        reads.append(path)
        return path.read_bytes().decode()

    monkeypatch.setattr(Path, "read_text", read)

    async def look() -> int:
        with socket.create_server(("127.0.0.1", free_port())) as server:
            port = server.getsockname()[1]
            assert all(ports.listeners(port, "127.0.0.1") for _ in range(3))
            first = len(reads)
            await asyncio.sleep(0)
            assert ports.listeners(port, "127.0.0.1")
            assert len(reads) == 2 * first
        await asyncio.sleep(0)
        assert not ports.listeners(port, "127.0.0.1")
        return first

    tables = asyncio.run(look())
    assert tables
    reads.clear()
    for _ in range(2):
        ports.listeners(1, "127.0.0.1")
    assert len(reads) == 2 * tables  # no loop, no turns


def test_v6_is_read_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with socket.create_server(("::1", free_port()), family=socket.AF_INET6) as server:
        port = port_of(server)
        assert [s.address for s in ports.sockets() if s.port == port] == ["::1"]
        assert ports.owner(port, "::1", [os.getpid()]) == ("ours", "")


def test_whose_it_is_is_a_number_and_words_of_it() -> None:
    with listening() as server:
        port = port_of(server)
        assert ports.pid_of(port) == os.getpid()
        assert ports.holder(port).startswith(f"pid {os.getpid()} (")


def test_nobody_we_may_see() -> None:
    assert ports.holder(1) == "a process that this user may not see"
    assert ports.pid_of(1) == 0
    assert list(ports.inodes(1 << 22)) == []


def test_who_listens_on_the_nodes_address_is_asked_there() -> None:
    with listening(host="0.0.0.0") as everywhere, listening(host="127.0.0.2") as there:
        assert ports.place(port_of(everywhere), "127.0.0.3", "127.0.0.1") == "127.0.0.3"
        assert ports.place(port_of(there), "127.0.0.2", "127.0.0.1") == "127.0.0.2"


def test_a_listener_on_all_v4_addresses_is_not_asked_at_a_v6_one() -> None:
    with listening(host="0.0.0.0") as everywhere:
        port = port_of(everywhere)
        assert not ports.listened(port, "fd00::5")
        assert ports.place(port, "fd00::5", "10.0.0.5") == "10.0.0.5"
        assert ports.place(port, "fd00::5", "fd00::6") == "127.0.0.1"
        assert ports.place(port, "fd00::5", "") == "127.0.0.1"


def test_one_on_all_v6_addresses_is_asked_at_both_kinds() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no dual stack here")
    there = socket.create_server(("::", free_port()), family=socket.AF_INET6, dualstack_ipv6=True)
    with there:
        for address in ("fd00::5", "127.0.0.3"):
            assert ports.place(port_of(there), address, "10.0.0.5") == address


def test_who_listens_elsewhere_is_asked_where_it_listens() -> None:
    """An address that its node had before, whatever is written of it; of several the one that it was asked at."""
    with listening(host="127.0.0.2") as there:
        port = port_of(there)
        assert ports.place(port, "127.0.0.1", "127.0.0.2") == "127.0.0.2"
        assert ports.place(port, "127.0.0.1", "127.0.0.1") == "127.0.0.2"
        assert ports.place(port, "127.0.0.1", "") == "127.0.0.2"
        with listening(port, host="127.0.0.4"):
            assert ports.place(port, "127.0.0.1", "127.0.0.4") == "127.0.0.4"


def test_where_nobody_listens_yet_it_is_the_address_it_was_started_with() -> None:
    port = free_port()
    assert ports.place(port, "127.0.0.1", "127.0.0.2") == "127.0.0.2"
    assert ports.place(port, "127.0.0.1", "") == "127.0.0.1"
    assert ports.place(0, "127.0.0.1", "") == "127.0.0.1"
    with listening() as there:  # a name that nobody knows is no reason to ask elsewhere than before
        for name in ("no-such-box.invalid", "x" * 300):
            assert ports.place(port_of(there), name, "127.0.0.9") == "127.0.0.9"
