"""The link to several controls, of which one leads: found through the leader, never mistaken for it."""

import ssl
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw import tls
from llmgw.config import Trust
from llmgw.gateway.feed import trusted
from tests.gateway.fake_control import FakeControl, fake_control
from tests.gateway.rig import rig, run, table
from tests.gateway.test_feed import linked


def test_a_standby_that_the_leader_tells_of_is_told_and_asked_when_the_leader_dies(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with fake_control() as leader, fake_control() as standby, rig() as world:
            await leader.publish(replace(table(5), controls=(leader.url, standby.url)))
            async with linked(world, tmp_path, leader) as link:
                await standby.demand(table=5)
                assert not standby.polls
                await leader.stop()
                await standby.publish(replace(table(6), controls=(standby.url,)))
                await standby.demand(table=6)
                # The one it was started with stays in the list, whoever leads.
                assert [c.url for c in link.feed.controls] == [leader.url, standby.url]
            await leader.start()

    run(scenario())


def test_a_control_that_is_no_more_is_told_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_control() as leader, fake_control() as standby, rig() as world:
            await leader.publish(replace(table(5), controls=(leader.url, standby.url)))
            async with linked(world, tmp_path, leader) as link:
                await standby.demand(table=5)
                await leader.publish(replace(table(6), controls=(leader.url,)))
                await leader.demand(table=6)
                assert [c.url for c in link.feed.controls] == [leader.url]

    run(scenario())


def test_a_gateway_that_starts_without_control_knows_the_standbys_from_its_disk(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with fake_control() as leader, fake_control() as standby, rig() as world:
            await leader.publish(replace(table(5), controls=(leader.url, standby.url)))
            async with linked(world, tmp_path, leader):
                await leader.demand(table=5)
            await leader.stop()
            await standby.publish(table(6))
            async with rig() as again, linked(again, tmp_path, leader):
                await standby.demand(table=6)
            await leader.start()

    run(scenario())


def test_a_standby_serves_a_gateway_that_has_nothing_and_sends_it_on(tmp_path: Path) -> None:
    """It comes first in the list: its table is better than none, and the leader's is better than that."""

    async def scenario() -> None:
        async with fake_control() as standby, fake_control() as leader, rig() as world:
            standby.stands_by = True
            await standby.publish(table(4))
            async with linked(world, tmp_path, standby, leader):
                await standby.demand(table=4)
                await leader.publish(table(5))
                await leader.demand(table=5)
                polls = len(standby.polls)
                await leader.publish(table(6))
                await leader.demand(table=6)
                assert len(standby.polls) == polls, "it stays with the leader"

    run(scenario())


async def identified(control: FakeControl, folder: Path) -> str:
    """Serves with a certificate of `folder` from now on; how it is told of then."""
    pair = tls.own(folder, ["127.0.0.1"])
    await control.stop()
    control.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    control.tls.load_cert_chain(*pair)
    await control.start()
    return f"{control.url}#{tls.pin_of(pair.cert)}"


@pytest.mark.parametrize("how", ["told of", "started with"])
def test_a_control_with_another_certificate_is_another_control(tmp_path: Path, how: str) -> None:
    """Its files were lost and made anew at the same address: the leader tells of the new hash, the old fits nobody."""

    async def scenario() -> None:
        async with fake_control() as leader, fake_control() as standby, rig() as world:
            before = await identified(standby, tmp_path / "old")
            known = [leader] if how == "told of" else [leader, standby]
            pins = (before.partition("#")[2],) if how == "started with" else ()
            await leader.publish(replace(table(5), controls=(leader.url, before)))
            async with linked(world, tmp_path, *known, trust=Trust(pins)) as link:
                await standby.demand(table=5)
                after = await identified(standby, tmp_path / "new")
                await leader.publish(replace(table(6), controls=(leader.url, after)))
                for _ in range(2):  # the first one is answered when the second comes
                    await standby.demand(table=6)
                assert [c.url for c in link.feed.controls] == [leader.url, standby.url]
                assert world.gateway.meter.control_up == {leader.url: True, standby.url: True}
                # Told of without a change it is the same one: nothing is dialled anew for each table.
                same = link.feed.controls[1]
                await leader.publish(replace(table(7), controls=(leader.url, after)))
                await standby.demand(table=7)
                assert link.feed.controls[1] is same

    run(scenario())


A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.mark.parametrize(
    ("given", "told", "found"),
    [
        (None, Trust((B,)), Trust((B,))),
        (Trust((A,)), Trust((B,)), Trust((A, B))),
        (Trust((A,)), Trust((A,)), Trust((A,))),
        (Trust(ca="/own.pem"), Trust((B,)), Trust(ca="/own.pem")),
        (Trust(), Trust((B,)), Trust()),
    ],
)
def test_what_an_operator_gave_is_trusted_on(
    given: Trust | None, told: Trust, found: Trust
) -> None:
    assert trusted(given, told) == found


def test_one_that_is_no_more_is_neither_asked_nor_shown(tmp_path: Path) -> None:
    """It answers still, and held the poll for ever: a leader that was replaced would keep its gateways."""

    async def scenario() -> None:
        async with fake_control() as leader, fake_control() as other, rig() as world:
            await leader.publish(replace(table(5), controls=(leader.url, other.url)))
            await other.publish(replace(table(5), controls=(leader.url, other.url)))
            async with linked(world, tmp_path, leader) as link:
                await other.demand(table=5)
                await leader.stop()
                await other.publish(replace(table(6), controls=(leader.url, other.url)))
                await other.demand(table=6)
                await leader.start()
                await leader.demand(table=6)
                # The poll is at the other one now, which says that it is not wanted any more.
                await other.publish(replace(table(7), controls=(leader.url,)))
                await leader.demand(table=7)
                await leader.publish(table(8))
                await leader.demand(table=8)
                assert other.url not in world.gateway.meter.control_up
                assert [c.url for c in link.feed.controls] == [leader.url]

    run(scenario())
