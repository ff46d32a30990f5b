"""The link to several controls, of which one leads: found through the leader, never mistaken for it."""

from pathlib import Path

from msgspec.structs import replace

from tests.gateway.fake_control import fake_control
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
