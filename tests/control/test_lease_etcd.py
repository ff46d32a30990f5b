"""The lease in an etcd, against one that loses answers, is slow, forgets and lies still (F16, F22-F33)."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from llmgw.control.files import StoreError
from llmgw.control.lease import Holder, LeaseLostError, NotYetError, Store
from llmgw.control.lease.etcd import EtcdLease
from tests.control.fake_etcd import FakeEtcd
from tests.control.pair import until
from tests.control.test_lease import Epochs

TTL_S = 9.0
SERVERS = ("http://one:1", "http://two:2")


class Rig:
    """One etcd and the leases of some controls; a minute of theirs is an instant here."""

    def __init__(self) -> None:
        self.etcd = FakeEtcd()
        self.tasks: list[asyncio.Task[None]] = []
        self.woken = 0

    def lease(self, name: str = "a", *, seen: int = 0, stored: int = 0, **more: Any) -> EtcdLease:
        epochs = Epochs()
        epochs.stored = stored
        # Its pauses are real time, a third of the ttl each: the clock that it judges by is the test's.
        where = Store(servers=SERVERS, ttl_s=TTL_S, **more)
        made = EtcdLease(where, epochs, clock=self.etcd.clock, transport=self.etcd)
        made.about = Holder(name, f"http://{name}")
        self.tasks.append(asyncio.ensure_future(made.run(self._wake, lambda: seen)))
        return made

    def _wake(self) -> None:
        self.woken += 1

    async def killed(self) -> None:
        """The newest, without a last word."""
        fault, self.etcd.fault = (
            self.etcd.fault,
            lambda _h, p: "lost" if p.endswith("revoke") else "",
        )
        task = self.tasks.pop()
        task.cancel()
        await asyncio.wait([task])
        self.etcd.fault = fault

    async def until(self, look: Callable[[], Any]) -> None:
        await until(look, limit_s=60.0)

    async def renews(self, lease: EtcdLease) -> None:
        """As if its next renewal were due now, until it was made or failed."""
        before = len(self.etcd.calls)
        lease._poke.set()
        await self.until(lambda: len(self.etcd.calls) > before)
        await asyncio.sleep(0.01)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        with suppress(ValueError):
            await asyncio.wait(self.tasks)
        for task in self.tasks:
            if not task.cancelled():
                task.result()


def scenario(story: Callable[[Rig], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(story)
    def test() -> None:
        async def whole() -> None:
            rig = Rig()
            try:
                await story(rig)
            finally:
                await rig.close()

        asyncio.run(whole())

    del test.__wrapped__
    return test


@scenario
async def test_f33_an_epoch_of_its_own_at_every_acquisition(rig: Rig) -> None:
    """Above the store's, the inventory's and what agents told of; asked for beside the writer when it must rise."""
    rig.etcd.put("llmgw/epoch", b"4")
    a = rig.lease(seen=7, stored=3)
    await rig.until(lambda: a.held)
    assert a.acquire("u", 7) == 8
    assert msgspec.json.decode(rig.etcd.value("llmgw/leader"))["epoch"] == 8
    with pytest.raises(NotYetError, match="an epoch above 8 is asked of etcd"):
        a.acquire("u", 0)
    await rig.until(lambda: a._unused)
    assert a.acquire("u", 8) == 9
    await a.rise(40)
    assert a.acquire("u", 40) == 41
    assert rig.etcd.value("llmgw/epoch") == b"41"


@scenario
async def test_f16_an_inventory_with_a_higher_epoch_than_the_store_counts(rig: Rig) -> None:
    a = rig.lease(stored=30)
    await rig.until(lambda: a.held)
    with pytest.raises(NotYetError):
        a.acquire("u", 0)
    await rig.until(lambda: a._unused == 31)
    assert a.acquire("u", 0) == 31


@scenario
async def test_f23_the_deadline_counts_from_before_the_call(rig: Rig) -> None:
    """An answer that took 4 s of a lease of 9 leaves 2 s to act in, not 6."""
    rig.etcd.slow_s = lambda path: 4.0 if path.endswith("keepalive") else 0.0
    a = rig.lease()
    await rig.until(lambda: a.held)
    assert a.deadline(100.0) == pytest.approx(102.0)
    rig.etcd.clock.now += 2.0
    assert not a.held


@scenario
async def test_f22_f26_f27_two_thirds_of_the_ttl_and_it_is_over(rig: Rig) -> None:
    """Whatever slept: this process, or its host, in which no monotonic clock but this one goes on."""
    a = rig.lease()
    await rig.until(lambda: a.held)
    assert a.deadline(0.0) == pytest.approx(6.0)
    rig.etcd.clock.now += 5.9
    assert a.held
    rig.etcd.clock.now += 0.2
    await rig.until(lambda: not a.held)
    a.renew()  # nobody else can have it yet: that is no loss
    await rig.renews(a)
    await rig.until(lambda: a.held)
    rig.etcd.clock.now += 60.0
    await rig.until(lambda: not a.held)
    await rig.renews(a)
    with pytest.raises(LeaseLostError, match="etcd let it lapse"):
        a.renew()


@scenario
async def test_f24_a_loss_is_a_state_also_where_no_answer_told_of_it(rig: Rig) -> None:
    """The renewal fails, another one has it by then; what was lost is asked in each pass, and stays lost."""
    a = rig.lease()
    await rig.until(lambda: a.held)
    rig.etcd.fault = lambda _, __: "lost"
    await rig.renews(a)
    assert "cannot be renewed" in a.problem
    rig.etcd.clock.now += 20.0
    rig.etcd.fault = lambda _, __: ""
    b = rig.lease("b")
    await rig.until(lambda: b.held)
    await rig.until(lambda: a._lost)
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            a.renew()
    assert b.held


@scenario
async def test_f28_the_store_is_asked_whether_the_key_is_still_ours(rig: Rig) -> None:
    """The etcd lease lives; the key was removed by somebody, and another control has made it anew."""
    a = rig.lease()
    await rig.until(lambda: a.held)
    b = rig.lease("b")
    await rig.until(lambda: b.holder == Holder("a", "http://a", 1))
    rig.etcd.remove("llmgw/leader")
    await rig.until(lambda: b.held)
    await rig.renews(a)
    with pytest.raises(LeaseLostError, match="its key was removed, b has it now"):
        a.renew()


@pytest.mark.parametrize("path", ["kv/txn", "lease/grant", "lease/keepalive"])
def test_an_answer_that_is_lost_makes_no_second_leader(path: str) -> None:
    """The transaction was carried out: what it made is found as its own, under the epoch that it had."""

    @scenario
    async def test(rig: Rig) -> None:
        skipped = [1] if path == "kv/txn" else []  # the first one only looks

        def fault(_: str, asked: str) -> str:
            if not asked.endswith(path):
                return ""
            if skipped:
                skipped.pop()
                return ""
            rig.etcd.fault = lambda _h, _p: ""
            return "unheard"

        rig.etcd.fault = fault
        a = rig.lease()
        await rig.until(lambda: a.held)
        assert a.acquire("u", 0) == 1
        assert rig.etcd.value("llmgw/epoch") == b"1"
        assert a.problem == ""

    test()


@scenario
async def test_f29_a_connection_that_is_dropped_is_no_loss(rig: Rig) -> None:
    """The right to lead is a key in the store, not a connection: the next call renews it, under the same epoch."""
    a = rig.lease()
    await rig.until(lambda: a.held)
    for _ in range(3):
        rig.etcd.fault = lambda _, path: "lost" if path.endswith("keepalive") else ""
        await rig.renews(a)
        assert "cannot be renewed" in a.problem
        rig.etcd.fault = lambda _, __: ""
        rig.etcd.clock.now += 5.0
        await rig.renews(a)
        assert a.held
    assert a.acquire("u", 0) == 1


@scenario
async def test_f31_with_one_server_dead_the_next_is_asked(rig: Rig) -> None:
    rig.etcd.fault = lambda host, _: "lost" if host == "one" else ""
    a = rig.lease()
    await rig.until(lambda: a.held)
    rig.etcd.calls.clear()
    await rig.renews(a)
    assert {host for host, _ in rig.etcd.calls} == {"two"}


@scenario
async def test_f30_while_the_store_is_away_a_standby_waits_and_says_so(rig: Rig) -> None:
    rig.etcd.fault = lambda _, __: "lost"
    a = rig.lease()
    await rig.until(lambda: a.problem)
    assert "connection refused" in a.problem
    assert not a.held
    rig.etcd.fault = lambda _, __: ""
    await rig.until(lambda: a.held)
    assert a.problem == ""


@scenario
async def test_a_successor_need_not_wait_where_the_lease_was_given_back(rig: Rig) -> None:
    a = rig.lease()
    await rig.until(lambda: a.held)
    a.publish(lambda: b"what operators said")
    await a.left()
    assert rig.etcd.value("llmgw/intent") == b"what operators said"
    b = rig.lease("b")
    await rig.until(lambda: b.holder)
    task = rig.tasks.pop(0)
    task.cancel()
    await asyncio.wait([task])
    await rig.until(lambda: b.held)
    assert b.intent == b"what operators said"
    assert b.holder is None
    assert b.acquire("u", 0) == 2


@scenario
async def test_what_is_too_large_to_leave_does_not_cost_the_lease(rig: Rig) -> None:
    a = rig.lease()
    await rig.until(lambda: a.held)
    rig.etcd.limit_bytes = 1000
    a.publish(lambda: b"x" * 2000)
    for _ in range(3):
        await rig.renews(a)
        assert "request is too large" in a.problem
        rig.etcd.clock.now += 5.0
        assert a.held


@scenario
async def test_user_and_password_and_a_token_that_lapses(rig: Rig) -> None:
    rig.etcd.user = ("llmgw", "pw")
    a = rig.lease(user="llmgw", password="pw")
    await rig.until(lambda: a.held)
    rig.etcd.tokens.clear()
    rig.etcd.clock.now += 5.0
    await rig.renews(a)
    rig.etcd.clock.now += 5.0
    assert a.held
    assert a.problem == ""


@pytest.mark.parametrize(
    ("user", "password", "why"),
    [("", "", "set LLMGW_ETCD_USER"), ("llmgw", "no", "user llmgw is refused")],
)
def test_without_the_right_user_it_is_said_what_to_set(user: str, password: str, why: str) -> None:
    @scenario
    async def test(rig: Rig) -> None:
        rig.etcd.user = ("llmgw", "pw")
        a = rig.lease(user=user, password=password)
        await rig.until(lambda: a.problem)
        assert why in a.problem
        assert "no" not in a.problem.split()
        assert not a.held

    test()


@scenario
async def test_f15_the_store_has_the_epoch_where_the_disk_cannot(rig: Rig) -> None:
    class Full(Epochs):
        @override
        def write_epoch(self, epoch: int, leader_uuid: str) -> None:
            msg = f"no room for {epoch} of {leader_uuid}"
            raise StoreError(msg)

    a = rig.lease()
    a._epochs = Full()
    a._epochs.stored = 0
    await rig.until(lambda: a.held)
    assert a.acquire("u", 0) == 1


@scenario
async def test_where_a_leader_is_found_is_told_anew_when_it_changes(rig: Rig) -> None:
    """Its certificate was renewed: standbys ask it by the pin that is in its key, which stays its own."""
    a = rig.lease()
    await rig.until(lambda: a.held)
    assert a.acquire("u", 0) == 1
    key = dict(rig.etcd.kvs["llmgw/leader"])
    a.about = Holder("a", "https://a#sha256:new")
    await rig.until(lambda: _leader(rig)["url"] == "https://a#sha256:new")
    assert (_leader(rig)["epoch"], _leader(rig)["uuid"]) == (1, a._uuid)
    again = rig.etcd.kvs["llmgw/leader"]
    assert again["create_revision"] == key["create_revision"]
    assert again["lease"] == key["lease"], "it lapses with its leader, as before"
    await rig.renews(a)
    assert a.held
    assert rig.etcd.kvs["llmgw/leader"] == again, "said once"


def _leader(rig: Rig) -> Any:
    return msgspec.json.decode(b64decode(rig.etcd.kvs["llmgw/leader"]["value"]))
