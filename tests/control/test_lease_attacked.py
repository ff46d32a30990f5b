"""What answers for etcd is slow, is none, is another's or changed its password: nobody leads by mistake, nothing ends.

F18, F22-F31. Each time the lease goes on by itself once the store is as it should be again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from typing_extensions import override

from llmgw.control.files import StoreError
from llmgw.control.lease import LeaseLostError
from llmgw.control.lease.etcd import EtcdLease
from tests.control.test_lease import Epochs
from tests.control.test_lease_etcd import TTL_S, Rig, scenario

PATHS = ("/v3/lease/grant", "/v3/lease/keepalive", "/v3/kv/txn")
NONSENSE: list[Any] = [
    {},
    [],
    "welcome to our proxy",
    {"result": None},
    {"result": {"TTL": "9"}},
    {"result": {"TTL": "soon", "ID": "x"}},
    {"header": {"revision": "none"}, "succeeded": True},
    {"header": {}, "responses": []},
    {"header": {"revision": "9"}, "responses": [1, 2, 3]},
    {"error": {"grpc_code": 14, "message": "etcdserver: no leader"}},
    {"ID": None, "TTL": []},
]


def instead(what: Any, path: str) -> Callable[[str, Any], Any]:
    return lambda asked, said: what if asked == path else said


def problem_or_lead(lease: EtcdLease) -> object:
    return lease.problem or lease.held


@pytest.mark.parametrize("what", NONSENSE, ids=str)
def test_an_answer_that_is_none_makes_no_leader_and_ends_none(what: Any) -> None:
    """Of each call in turn: before it leads, and while it leads."""

    @scenario
    async def test(rig: Rig) -> None:
        for path in PATHS:
            rig.etcd.instead = instead(what, path)
            a = rig.lease()
            await rig.until(partial(problem_or_lead, a))
            assert not a.held, f"it leads by {what} of {path}"
            assert not rig.tasks[-1].done()
            rig.etcd.instead = lambda _, said: said
            await rig.until(partial(getattr, a, "held"))
            for path_then in PATHS[1:]:
                rig.etcd.instead = instead(what, path_then)
                await rig.renews(a)
                await rig.until(partial(getattr, a, "problem"))
                a.renew()  # not lost: nobody else has it
                rig.etcd.clock.now += TTL_S * 2 / 3
                assert not a.held
                rig.etcd.instead = lambda _, said: said
                await rig.until(partial(getattr, a, "held"))
                assert a.problem == ""
            await rig.killed()
            rig.etcd.clock.now += 2 * TTL_S

    test()


@scenario
async def test_f23_a_store_that_takes_ten_seconds_a_call_leads_nobody_into_acting(rig: Rig) -> None:
    """Every answer comes, and each too late to act on; a lease that lapsed meanwhile ends this process (F25)."""
    rig.etcd.slow_s = lambda _: TTL_S + 1
    a = rig.lease()
    await rig.until(lambda: len(rig.etcd.calls) > 4)
    assert not a.held
    rig.etcd.slow_s = lambda _: 0.0
    await rig.until(lambda: a.held or a._lost)


@scenario
async def test_f31_two_standbys_that_race_for_it_are_one_leader(rig: Rig) -> None:
    """All ask at once, many times over; epochs never repeat."""
    epochs: list[int] = []
    made = {name: rig.lease(name) for name in "abcde"}
    for _ in range(4):
        await rig.until(lambda: any(x.held for x in made.values()))
        (leader,) = [name for name, x in made.items() if x.held]
        epochs.append(made[leader].acquire("u", 0))
        task = rig.tasks[list(made).index(leader)]
        task.cancel()
        await asyncio.wait([task])
        rig.tasks.remove(task)
        del made[leader]
        rig.etcd.clock.now += TTL_S + 1
    assert epochs == sorted(set(epochs))


@scenario
async def test_f31_a_store_that_is_another_cluster_by_now_has_no_lease_of_ours(rig: Rig) -> None:
    """Wiped, or a name that leads elsewhere: the leader ends, also where the new one counts to the same revision."""
    a = rig.lease()
    await rig.until(lambda: a.held)
    created = a._created
    rig.etcd.kvs.clear()
    rig.etcd.leases.clear()
    rig.etcd.revision = created - 1
    b = rig.lease("b", seen=1)
    await rig.until(lambda: b.held)
    assert b._created == created
    await rig.renews(a)
    await rig.until(lambda: a._lost)
    with pytest.raises(LeaseLostError):
        a.renew()
    assert b.acquire("u", 0) == 2


@scenario
async def test_a_password_that_was_changed_costs_the_lead_and_not_the_process(rig: Rig) -> None:
    """The token lives on until it lapses; then it is said, and set right it goes on."""
    rig.etcd.user = ("llmgw", "old")
    a = rig.lease(user="llmgw", password="old")
    await rig.until(lambda: a.held)
    rig.etcd.user = ("llmgw", "new")
    await rig.renews(a)
    assert a.problem == ""
    rig.etcd.tokens.clear()
    await rig.renews(a)
    await rig.until(lambda: "user llmgw is refused" in a.problem)
    rig.etcd.clock.now += TTL_S * 2 / 3
    assert not a.held
    a.renew()
    rig.etcd.user = ("llmgw", "old")
    await rig.until(lambda: a.held)


@scenario
async def test_f26_a_host_that_slept_does_not_act_before_it_asked(rig: Rig) -> None:
    """The clock that counts sleep jumps; nothing else tells of it."""
    a = rig.lease()
    await rig.until(lambda: a.held)
    rig.etcd.clock.now += 3600
    assert not a.held
    assert a.deadline(50.0) is not None
    assert a.deadline(50.0) < 50.0  # type: ignore[operator]
    await rig.renews(a)
    await rig.until(lambda: a._lost)


@scenario
async def test_f13_f15_a_disk_that_cannot_be_read_keeps_nobody_from_leading(rig: Rig) -> None:
    """The store has the epoch; whoever holds the lease and does not lead keeps everybody else from it."""

    class Gone(Epochs):
        @override
        def epoch(self) -> int:
            msg = "the inventory is not open"
            raise StoreError(msg)

    a = rig.lease()
    a._epochs = Gone()
    await rig.until(lambda: a.held)
    assert a.acquire("u", 0) == 1
