"""Workers that speak no HTTP: whether they listen, asked by their own agent and by the leader's (`workers_first`)."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from llmgw.agent import ports
from llmgw.agent.perform import Performer
from llmgw.core.types.messages import Fabric, Peer
from llmgw.core.types.node import Knocked, Probed
from llmgw.core.types.record import Record
from scripts.ports import free_port
from tests.agent.perform_rig import FACTS, START, Bench
from tests.agent.rig import until
from tests.engines.running import FAKE

E = TypeVar("E", Probed, Knocked)


def worker(port: int) -> Record:
    start = replace(START, shard="alpha-1/1", rank=1, world_size=2, health="tcp", port=port)
    return Record(start=start, state="starting", pid=os.getpid())


def leader(*listening: int) -> Record:
    peers = (
        Peer(rank=0, node="box1", address="127.0.0.1", port=1),
        *(
            Peer(rank=n, node=f"box{n + 1}", address="127.0.0.1", port=p)
            for n, p in enumerate(listening, 1)
        ),
    )
    return Record(start=replace(START, start_order="workers_first", peers=peers))


def asked(bench: Bench, act: Callable[[Performer], Any], kind: type[E]) -> E:
    """What it posts; each time in an event loop of its own."""
    bench.events.clear()
    bench.posted = asyncio.Event()
    bench.run(act, posts=kind)
    found: E = bench.last(kind)
    return found


def probed(bench: Bench, record: Record) -> Probed:
    return asked(bench, lambda hands: hands.probe(record, check=True), Probed)


def knocked(bench: Bench, *listening: int) -> tuple[str, ...]:
    return asked(bench, lambda hands: hands.knock(leader(*listening)), Knocked).missing


@contextmanager
def engine(*flags: str) -> Iterator[tuple[int, int]]:
    """A stand-in's port and pid."""
    port = free_port()
    child = subprocess.Popen([*FAKE, "--port", str(port), *flags], start_new_session=True)
    try:
        until(lambda: ports.listened(port, "127.0.0.1"), "its listener")
        yield port, child.pid
    finally:
        child.kill()
        child.wait()


def test_a_worker_is_up_once_its_own_process_listens_and_nobody_connects_to_it(
    bench: Bench,
) -> None:
    port = free_port()
    assert probed(bench, worker(port)).outcome == "refused"
    with socket.create_server(("127.0.0.1", port)) as server:
        seen = probed(bench, worker(port))
        assert (seen.outcome, seen.owner) == ("ok", "ours")
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_it_listens_on_its_address_of_the_fabric(bench: Bench) -> None:
    port = free_port()
    on_ib0 = worker(port)
    on_ib0 = replace(on_ib0, start=replace(on_ib0.start, fabric="ib0"))
    facts = replace(FACTS, fabrics={"ib0": Fabric(address="127.0.0.2")})

    def ask(hands: Performer) -> None:
        hands.facts = facts
        hands.probe(on_ib0, check=True)

    for address, outcome in (("127.0.0.1", "refused"), ("127.0.0.2", "ok")):
        with socket.create_server((address, port)):
            assert asked(bench, ask, Probed).outcome == outcome


def test_somebody_elses_listener_is_not_the_worker_s(bench: Bench) -> None:
    with engine() as (port, _):
        seen = probed(bench, worker(port))
    assert (seen.outcome, seen.owner) == ("ok", "other")


def test_a_leader_knocks_at_every_worker_and_says_who_does_not_listen(bench: Bench) -> None:
    there, away = free_port(), free_port()
    with socket.create_server(("127.0.0.1", there)):
        (missing,) = knocked(bench, there, away)
        assert missing == f"rank 2 on box3 at 127.0.0.1:{away}: connection refused"
        assert knocked(bench, there) == ()


def test_a_worker_that_swallows_everything_is_not_waited_for_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that is down: no answer at all (F61)."""
    monkeypatch.setattr("llmgw.agent.probe.TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # its queue is full from here on
            (missing,) = knocked(bench, port)
    assert missing.endswith("no answer in 0.2 s")


def test_f64_a_token_is_asked_for_where_the_probe_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/health` is 200 while the completion hangs."""
    monkeypatch.setattr("llmgw.agent.probe.TOKEN_TIMEOUT_S", 0.5)

    def seen(record: Record, *, token: bool) -> Probed:
        return asked(bench, lambda hands: hands.probe(record, check=False, token=token), Probed)

    with engine("--hang-after", "1") as (port, pid):
        record = Record(start=replace(START, port=port), state="ready", pid=pid)
        assert seen(record, token=True).outcome == "ok"
        assert seen(record, token=False).outcome == "ok"
        hung = seen(record, token=True)
    assert (hung.outcome, hung.detail) == ("failed", "no answer in 0.5 s")
