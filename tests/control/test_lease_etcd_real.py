"""The lease against a real etcd over its JSON gateway: a leader, its successor, a store that is away (F28-F33)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from llmgw.control.lease import Holder, LeaseLostError, store
from llmgw.control.lease.calls import text
from llmgw.control.lease.etcd import EtcdLease
from tests.control import real_etcd
from tests.control.pair import until
from tests.control.real_etcd import RealEtcd
from tests.control.test_lease import Epochs

pytestmark = pytest.mark.etcd
#: Twice as long as a busy box is seen to hold a process up.
TTL_S = 4


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEtcd]:
    with real_etcd.serving(tmp_path_factory.mktemp("etcd")) as found:
        yield found


def scenario(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(story)
    def test(etcd: RealEtcd) -> None:
        asyncio.run(story(etcd))

    return test


class Control:
    """As much of one as a lease sees. `seen`: the highest epoch that agents told it of."""

    def __init__(
        self, etcd: RealEtcd, name: str, prefix: str, *, stored: int = 0, ttl_s: int = TTL_S
    ) -> None:
        self.epochs = Epochs()
        self.epochs.stored = stored
        self.lease = EtcdLease(store(f"{etcd.spec}/{prefix}?ttl={ttl_s}s"), self.epochs)
        self.lease.about = Holder(name, f"http://{name}")
        self.seen = 0
        self.woken = asyncio.Event()
        self.task = asyncio.ensure_future(self.lease.run(self.woken.set, lambda: self.seen))

    async def leads(self) -> int:
        await until(lambda: self.lease.held)
        return self.lease.acquire("uuid", self.seen)

    async def stops(self, *, killed: bool = False) -> None:
        if killed:  # nothing is given back
            self.lease._lease = ""
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def controls(
    etcd: RealEtcd, prefix: str, *names: str, **more: Any
) -> AsyncIterator[list[Control]]:
    made = [Control(etcd, name, prefix, **more) for name in names]
    try:
        yield made
    finally:
        for control in made:
            await control.stops()


async def first(*made: Control) -> tuple[Control, Control]:
    await until(lambda: any(c.lease.held for c in made))
    (leader,) = [c for c in made if c.lease.held]
    (other,) = [c for c in made if c is not leader]
    return leader, other


@scenario
async def test_f31_one_of_two_leads_and_the_other_knows_whom(etcd: RealEtcd) -> None:
    async with controls(etcd, "one", "a", "b", stored=4) as made:
        leader, other = await first(*made)
        leader.epochs.stored = 0
        assert leader.lease.acquire("u", 0) == 1
        await until(lambda: other.lease.holder)
        about = leader.lease.about
        assert other.lease.holder == Holder(about.name, about.url, 1)
        assert not other.lease.held


@scenario
async def test_f33_the_next_leader_has_a_higher_epoch_at_once(etcd: RealEtcd) -> None:
    """Given back it need not lapse; what agents told the standby of counts too."""
    async with controls(etcd, "two", "a", "b", ttl_s=60) as made:
        leader, other = await first(*made)
        assert await leader.leads() == 1
        leader.lease.publish(lambda: b"paused")
        await until(lambda: leader.lease._left is None)
        other.seen = 41
        began = time.monotonic()
        await leader.stops()
        assert await other.leads() == 42
        assert time.monotonic() - began < 30
        assert other.lease.intent == b"paused"


@scenario
async def test_f25_a_killed_leaders_lease_lapses_and_the_watch_sees_it(etcd: RealEtcd) -> None:
    async with controls(etcd, "three", "a", "b") as made:
        leader, other = await first(*made)
        began = time.monotonic()
        await leader.stops(killed=True)
        await other.leads()
        assert time.monotonic() - began < TTL_S + 30


@scenario
async def test_f24_f28_a_lease_that_lives_is_no_key_that_is_ours(etcd: RealEtcd) -> None:
    """Somebody removed the key: its maker finds out with its next renewal and ends, though its lease is alive."""
    async with controls(etcd, "four", "a", "b") as made:
        leader, other = await first(*made)
        etcd.call("/v3/kv/deleterange", {"key": text("four/leader")})
        await until(lambda: leader.lease._lost)
        assert not leader.lease.held
        with pytest.raises(LeaseLostError, match="its key was removed"):
            leader.lease.renew()
        assert await other.leads() == 2


@scenario
async def test_f16_an_epoch_that_was_seen_elsewhere_is_exceeded(etcd: RealEtcd) -> None:
    async with controls(etcd, "five", "a") as (a,):
        assert await a.leads() == 1
        await a.lease.rise(70)
        assert a.lease.acquire("u", 70) == 71


def test_f30_with_the_store_away_acting_ends_and_nothing_is_lost(tmp_path: Path) -> None:
    """It lives through the store's restart: the same lease, a new epoch, by itself."""

    async def story(etcd: RealEtcd) -> None:
        async with controls(etcd, "six", "a") as (a,):
            assert await a.leads() == 1
            etcd.stop()
            await until(lambda: not a.lease.held)
            a.lease.renew()  # nobody else can have it: no reason to end
            assert "cannot be renewed" in a.lease.problem
            await asyncio.to_thread(etcd.start)
            await until(lambda: a.lease.held)
            assert a.lease.problem == ""
            with pytest.raises(Exception, match="an epoch above 1 is asked"):
                a.lease.acquire("u", 0)
            await until(lambda: a.lease._unused)
            assert a.lease.acquire("u", 0) == 2

    with real_etcd.serving(tmp_path) as etcd:
        asyncio.run(story(etcd))
