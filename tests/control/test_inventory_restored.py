"""A control that starts on less than there was: no file (A47, A51), or one of long ago (F16). The fleet's word counts.

The epoch is above every one that was obeyed, no agent refuses for long, what runs is adopted, and what the old file
says of drains and failures ends where the facts say otherwise.
"""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.control.store import read_memory
from llmgw.core.types.messages import PROTOCOL_FLOOR, SendReport, Start
from tests.control.bench import CATALOG, ON_DEMAND, Agent, Bench, engine, scenario, started

BETA = CATALOG.replace("alpha:", "beta:").replace("first", "second").split("models:\n")[1]


@scenario
async def test_a47_without_a_file_it_waits_until_nobody_new_has_come_for_15_s(bench: Bench) -> None:
    """Three boxes come one after the other, each with an engine that the first two know nothing of: none is doubled."""
    bench.catalog.write_text(CATALOG + BETA)
    boxes = [Agent(bench, f"box{n}", epoch_seen=6, leader_uuid="before") for n in (1, 2, 3)]
    boxes[0].runs(engine())
    boxes[2].runs(engine("beta-1", "beta"))
    async with bench.running() as control:
        for n, box in enumerate(boxes):
            await box.register()
            await bench.passes(10, *boxes[: n + 1])
            assert bench.settling()
        assert control.state.epoch == 7
        await bench.passes(10, *boxes)
        assert not bench.settling()
        await bench.passes(20, *boxes)
        assert [bench.orders(box) for box in boxes] == [[], [], []]
        assert (await bench.get("/api/v1/plan"))["exit_code"] == 0


@scenario
async def test_a47_without_a_file_it_waits_no_longer_than_settle_timeout(bench: Bench) -> None:
    """Even where somebody new comes all the time."""
    boxes: list[Agent] = []
    async with bench.running():
        for n in range(1, 7):
            assert bench.settling()
            boxes.append(Agent(bench, f"box{n}", epoch_seen=6, leader_uuid="before"))
            await boxes[-1].register()
            await bench.passes(10, *boxes)
        assert not bench.settling()
        assert sum(isinstance(c, Start) for c in await boxes[0].poll()) == 1


@scenario
async def test_a47_nodes_that_no_control_ever_commanded_are_not_waited_for(bench: Bench) -> None:
    """`epoch_seen` 0 all over is a first start and no lost file; one box with another word makes it one."""
    async with bench.running():
        new = Agent(bench, "box1")
        await new.register()
        assert not bench.settling()
        assert bench.orders(new) == ["start"]
    bench.inventory.unlink()
    async with bench.running():
        old = Agent(bench, "box2", epoch_seen=1, leader_uuid="before")
        await old.register()
        fresh = Agent(bench, "box3")
        await fresh.register()
        assert bench.settling()
        assert bench.orders(fresh) == []


class Story:
    """box1 runs alpha, beta has given up, a gone replica was being drained: the backup. Then life goes on."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.box1 = Agent(bench)
        self.box2 = Agent(bench, "box2")

    async def up_to_the_backup(self) -> None:
        bench, box1 = self.bench, self.box1
        bench.catalog.write_text(CATALOG + BETA)
        box1.runs(engine())
        box1.runs(engine("gone-1", "gone", port=18900))
        async with bench.running():
            await box1.register()
            shard = await box1.start_one("loading")
            why = "gave up after 5 failures in 30 min: exit 1"
            await box1.tell(replace(shard, state="failed", gave_up=True, error=why))
            await bench.passes(70, box1)
            assert list(bench.control.state.draining) == ["inc-gone-1"]
            assert list(bench.control.state.failures) == ["beta"]
        shutil.copy(bench.inventory, bench.folder / "backup")

    async def and_after_it(self) -> None:
        """The drained one ends, box2 comes, an operator clears beta, which runs there from then on."""
        bench, box1, box2 = self.bench, self.box1, self.box2
        async with bench.running():
            await box1.register()
            await box2.register()
            await bench.passes(10, box1, box2)
            box1.shards = {k: s for k, s in box1.shards.items() if s.replica == "alpha-1"}
            await box1.register()
            await bench.post("/api/v1/replicas/beta/clear")
            (box,) = [b for b in (box1, box2) if "start" in bench.orders(b)]
            await box.start_one()
            assert sum(len(b.shards) for b in (box1, box2)) == 2
        for box in (box1, box2):
            async with bench.running():
                await box.register()

    def restored(self) -> None:
        shutil.copy(self.bench.folder / "backup", self.bench.inventory)

    @property
    def seen(self) -> int:
        return max(self.box1.report.epoch_seen, self.box2.report.epoch_seen)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_f16_a_backup_is_overruled_by_what_runs(order: tuple[int, int], tmp_path: Path) -> None:
    @scenario
    async def test(bench: Bench) -> None:
        story = Story(bench)
        await story.up_to_the_backup()
        await story.and_after_it()
        seen = story.seen
        story.restored()
        assert read_memory(bench.inventory).epoch < seen
        boxes = [(story.box1, story.box2)[i] for i in order]
        async with bench.running() as control:
            for box in boxes:
                # gone-1, of the backup's last picture, is forgotten once its node has spoken
                assert set((await box.register()).values()) <= {"adopt", "forget"}
            assert control.state.epoch > seen
            # Who came first, and saw less, is told by the order to report; then all obey one epoch.
            for box in boxes:
                orders = await box.poll() if bench.orders(box) else ()
                assert {type(o) for o in orders} <= {SendReport}
                assert {o.epoch for o in orders} <= {control.state.epoch}
                await box.register()
                assert box.said.epoch == control.state.epoch
            await bench.passes(90, *boxes)
            assert [bench.orders(box) for box in boxes] == [[], []]
            assert not control.state.draining  # nothing runs that it was about
            status = await bench.get("/api/v1/status")
            states = {m["name"]: m["state"] for m in status["models"]}
            assert states == {"alpha": "loaded", "beta": "loaded"}
            assert (await bench.get("/api/v1/plan"))["exit_code"] == 0
            assert control.store.epoch() == control.state.epoch

    test(tmp_path)


@scenario
async def test_f16_a_backup_does_not_know_all_nodes_and_starts_nothing_that_they_may_run(
    bench: Bench,
) -> None:
    """An agent obeyed an epoch that the file has not heard of: its list of nodes is as old (A47)."""
    bench.catalog.write_text(CATALOG + BETA)
    box1 = Agent(bench, "box1")
    box1.runs(engine())
    box2 = Agent(bench, "box2", epoch_seen=40, leader_uuid="before")
    box2.runs(engine("beta-1", "beta"))
    async with bench.running():
        await box1.register()
        await bench.later(1)
        shutil.copy(bench.inventory, bench.folder / "backup")
    shutil.copy(bench.folder / "backup", bench.inventory)
    box1.report = replace(box1.report, epoch_seen=40, leader_uuid="before")
    async with bench.running():
        await box1.register()
        await bench.passes(10, box1)
        assert bench.settling()
        assert bench.orders(box1) == []
        await box2.register()
        await bench.passes(20, box1, box2)
        assert not bench.settling()
        assert bench.orders(box1) == bench.orders(box2) == []


@scenario
async def test_f16_f33_an_order_goes_out_under_the_epoch_in_which_its_agent_said_what_it_runs(
    bench: Bench,
) -> None:
    """box1 works for this control until box2 comes, which obeyed 50: what was queued for box1 before is not refused.

    Had box1 obeyed 50 too, and started something by it, it would be: under 51 it would start a second one.
    """
    bench.catalog.write_text(CATALOG + BETA)
    async with bench.running(crash=True):
        pass
    async with bench.running() as control:
        box1 = Agent(bench, "box1")
        await box1.register()
        first = [c for c in await box1.poll() if isinstance(c, Start)]
        assert {c.epoch for c in first} == {2}
        for command in first:
            await box1.tell(started(command))
        box2 = Agent(bench, "box2", epoch_seen=50, leader_uuid="before")
        await box2.register()
        assert box2.said.epoch == control.state.epoch == 51
        told = await box1.poll()  # what was queued under the old epoch too
        assert [type(c) for c in told] == [Start, SendReport]
        assert [c.epoch for c in told] == [2, 51]
        await box1.tell(started(told[0]))  # type: ignore[arg-type]
        assert await box1.register() == dict.fromkeys((s for s, _ in box1.shards), "keep")
        assert bench.orders(box1) == bench.orders(box2) == []
        assert read_memory(bench.inventory).epoch == 51


@scenario
async def test_f33_above_a_leader_that_was_seen_nothing_is_placed_before_the_answer(
    bench: Bench,
) -> None:
    """box1 may have obeyed that leader too, and run what is asked for by now."""
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running() as control:
        box1 = Agent(bench, "box1")
        await box1.register()
        older = {"protocol": PROTOCOL_FLOOR - 1, "epoch_seen": 50, "leader_uuid": "before"}
        await Agent(bench, "box2", **older).register()
        assert control.state.epoch == 51
        await bench.demand(1, waiting={"alpha": 1})
        await bench.later(1)
        assert bench.orders(box1) == ["report"]
        assert [c.epoch for c in await box1.poll()] == [51]
        await box1.register()
        await bench.later(1)
        assert bench.orders(box1) == ["start"]
        assert [c.epoch for c in await box1.poll()] == [51]


@scenario
async def test_f11_with_a_broken_catalog_the_files_last_good_one_wakes_and_keeps(
    bench: Bench,
) -> None:
    """Nothing is stopped or rolled for a file that nobody can read, and who asks for a model gets it."""
    sleeper = ON_DEMAND.replace("alpha:", "beta:").replace("first", "second").split("models:\n")[1]
    bench.catalog.write_text(CATALOG + sleeper)
    agent = Agent(bench)
    agent.runs(engine())
    async with bench.running(crash=True):
        await agent.register()
        await bench.later(1)
    bench.catalog.write_text("models: [")
    async with bench.running() as control:
        assert await agent.register() == {"alpha-1/0": "adopt"}
        await bench.passes(70, agent)
        assert bench.orders(agent) == []
        await bench.demand(1, waiting={"beta": 1})
        assert (await agent.start_one()).model == "beta"
        assert "catalog.yaml:2:1" in (await bench.get("/api/v1/status"))["catalog"]["error"]
        # kept for the next start too, also in a file that was lost meanwhile
        bench.inventory.unlink()
        await bench.later(1)
        assert control.store.sources() == control.catalogs.sources
