"""A control that does not decide, as its lease store is away: what its word is worth to a gateway."""

from pathlib import Path

from llmgw.core.types.routes import GATEWAY_WORD_S
from tests.gateway.fake_control import fake_control
from tests.gateway.rig import loaded, rig, run, table
from tests.gateway.test_feed import linked


def test_who_neither_leads_nor_knows_who_does_has_a_word_only_with_all_others(
    tmp_path: Path,
) -> None:
    """F30: it is cut off from the lease store, and may be the only one. Where another one does not answer, that leads.

    With the store down for all of them nobody does, whoever is still taken for it, and what runs is served on.
    """

    async def scenario() -> None:
        async with fake_control() as known, fake_control() as other, rig() as world:
            engine = await world.engine()
            other.deaf = True
            await known.publish(table(1, m=loaded(engine.replica(sleeps=True))))
            async with linked(world, tmp_path, known, other):
                await known.demand(table=1)
                given = world.gateway.fleet.word
                await world.until(lambda: not given.lapsed)
                known.undecided = True
                for _ in range(2):  # the first one is answered when the second comes
                    await known.demand(table=1)
                world.pass_time(GATEWAY_WORD_S)
                for _ in range(2):
                    await known.demand(table=1)
                assert given.lapsed
                other.deaf, other.stands_by, other.table = False, True, known.table
                await other.stop()
                await other.start()
                await world.until(lambda: not given.lapsed)
                world.pass_time(GATEWAY_WORD_S)
                await other.stop()
                await world.until(lambda: not given.lapsed)
            await other.start()

    run(scenario())
