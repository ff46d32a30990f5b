"""A control that stands by, leads, runs out of time and leads again, with a lease that the test holds in its hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from llmgw.control import intent
from llmgw.control.lease import Holder, LeaseLostError, NotYetError
from llmgw.control.picture import Moment
from llmgw.core.reconcile.fresh import Memory
from llmgw.core.types.messages import NodeReport, SendReport, Start
from llmgw.core.types.routes import Heard, RouteTable
from llmgw.core.types.state import Failure, Node, State
from llmgw.wire import decode
from tests.control.bench import Agent, Bench, engine, scenario

OTHER = Holder("other:1", "http://127.0.0.1:9", 7)


class Hand:
    """A lease as the test says: `until` is on the bench's clock."""

    name = id = "etcd"

    def __init__(self, bench: Bench, *, held: bool = False) -> None:
        self.bench = bench
        self.problem = ""
        self.holder: Holder | None = None if held else OTHER
        self.about = Holder("me", "http://127.0.0.1:8")
        self.until = float("inf") if held else float("-inf")
        self.epochs = [8]
        self.asked: list[int] = []
        self.lost = ""
        self.intent = b""
        self.waited = 0

    @property
    def held(self) -> bool:
        return self.bench.clock.now < self.until

    def acquire(self, leader_uuid: str, above: int) -> int:
        assert leader_uuid
        if self.epochs and self.epochs[-1] > above:
            return self.epochs.pop()
        self.epochs.clear()
        self.asked.append(above)
        msg = "an epoch is asked for"
        raise NotYetError(msg)

    def renew(self) -> None:
        if self.lost:
            raise LeaseLostError(self.lost)

    def deadline(self, now: float) -> float | None:
        assert now == self.bench.clock.now
        return self.until

    def publish(self, written: Callable[[], bytes]) -> None:
        self.intent = written()

    async def left(self) -> None:
        self.waited = len(self.intent)

    async def rise(self, above: int) -> None:
        self.asked.append(above)
        self.epochs.append(above + 1)

    async def run(self, wake: Callable[[], None], seen: Callable[[], int]) -> None: ...

    def release(self) -> None: ...

    def comes(self, for_s: float = float("inf")) -> None:
        self.holder, self.until = None, self.bench.clock.now + for_s


def with_lease(bench: Bench, **more: Any) -> Hand:
    hand = Hand(bench, **more)
    bench.lease_of = lambda _: hand
    return hand


async def settled(bench: Bench, *agents: Agent) -> None:
    """As its agents answer the fence."""
    for agent in agents:
        orders = await agent.poll()
        assert [type(o) for o in orders] == [SendReport]
        assert orders[0].epoch == bench.control.state.epoch
        await agent.register()
    await bench.later(1)


@scenario
async def test_a_standby_knows_the_fleet_serves_looks_and_commands_nothing(bench: Bench) -> None:
    with_lease(bench)
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        assert not agent.said.leader
        await bench.later(2)
        status = await bench.get("/api/v1/status")
        assert status["leader"]["name"] == "other:1"
        assert status["leader"]["epoch"] == 7
        assert not status["leader"]["leading"]
        assert [r["replica"] for r in status["replicas"]] == ["alpha-1"]
        assert status["blocked"] is None
        assert (await bench.get("/api/v1/plan"))["shards"][0]["verdict"] == "adopt"
        assert (await bench.get("/api/v1/leader"))["leader"] is False
        await bench.get("/readyz", status=503)
        assert bench.orders(agent) == []
        assert not bench.inventory.exists(), "the file is its leader's"
        assert control.store.opened == 0


@scenario
async def test_its_route_table_is_below_the_leaders_and_never_held_back_for(bench: Bench) -> None:
    """A gateway that has nothing gets one; who has any table of the leader is sent on to that, at once."""
    with_lease(bench)
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.later(1)
        answer = await bench.client.get("/gateway/v1/routes?version=0")
        table = decode(answer.content, RouteTable)
        assert 6_000_000 < table.version < 7_000_000
        assert [r.replica for r in table.models["alpha"].replicas] == ["alpha-1"]
        assert table.controls == ("http://127.0.0.1:9", "http://127.0.0.1:8")
        for version in (table.version, 7_000_012):
            answer = await bench.client.get(f"/gateway/v1/routes?version={version}")
            assert answer.status_code == 204
        said = await bench.demand(1, table=7_000_012)
        none = Heard(version=table.version, leader=False, acting=False)
        assert said == none, "it has no word to give"
        await bench.later(1)
        assert bench.control.routes.version < 7_000_000, "it does not outbid the leader"


@scenario
async def test_an_operators_word_is_passed_on_or_refused_with_whom_to_ask(bench: Bench) -> None:
    with_lease(bench)
    async with bench.running():
        said = await bench.post("/api/v1/pause", {}, status=503)
        assert said["error"]["code"] == "not_leading"
        assert (
            "other:1 at http://127.0.0.1:9 leads and cannot be reached" in said["error"]["message"]
        )
        answer = await bench.client.post(
            "/api/v1/pause", json={}, headers={"x-llmgw-forwarded-by": "third"}
        )
        assert answer.status_code == 409
        assert "ask http://127.0.0.1:9" in answer.json()["error"]["hint"]


@scenario
async def test_a22_a42_promotion_fences_first_and_settles_in_one_round(bench: Bench) -> None:
    """The sessions stay: each agent is asked for a report under the new epoch, and its answer settles its node."""
    hand = with_lease(bench)
    async with bench.running() as control:
        agents = [Agent(bench, f"box{n}") for n in (1, 2)]
        agents[0].runs(engine())
        for agent in agents:
            await agent.register()
        await bench.passes(30, *agents)
        hand.comes()
        await bench.later(1)
        assert (control.state.epoch, bench.settling()) == (8, True)
        assert control.routes.version > 8_000_000
        await settled(bench, *agents)
        assert not bench.settling()
        assert all(a.said.leader and a.said.epoch == 8 for a in agents)
        (row,) = (await bench.get("/api/v1/status"))["replicas"]
        assert (row["replica"], row["state"]) == ("alpha-1", "ready")


@scenario
async def test_a46_a_node_that_does_not_answer_the_fence_is_waited_for(bench: Bench) -> None:
    """What a standby saw of it serves looks; nothing is decided that may concern it."""
    hand = with_lease(bench)
    async with bench.running():
        agents = [Agent(bench, f"box{n}") for n in (1, 2)]
        for agent in agents:
            await agent.register()
        hand.comes()
        await bench.later(1)
        await settled(bench, agents[0])
        assert bench.settling()
        status = await bench.get("/api/v1/status")
        assert status["settling"]["waiting_for"] == ["box2"]


@scenario
async def test_f22_f27_nothing_is_handed_out_after_the_deadline(bench: Bench) -> None:
    """Queued in time, asked for too late: the process was stopped in between, and another may lead by now."""
    hand = with_lease(bench, held=True)
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        await settled(bench, agent)
        await bench.passes(20, agent)
        assert bench.orders(agent) == ["start"]
        hand.until = bench.clock.now + 3.0
        bench.clock.now += 3.0
        assert await agent.poll() == ()
        said = await bench.post("/api/v1/pause", {}, status=503)
        assert said["error"]["code"] == "not_leading"
        assert not control.leading
        # In time it would have been handed out.
        hand.until, hand.epochs = float("inf"), [9]
        await bench.later(1)
        await agent.poll(status=410)


@scenario
async def test_f30_without_its_store_a_leader_serves_and_leads_again_under_a_new_epoch(
    bench: Bench,
) -> None:
    hand = with_lease(bench, held=True)
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await settled(bench, agent)
        await bench.passes(20, agent)
        version = control.routes.version
        hand.until, hand.problem = bench.clock.now, "etcd does not answer"
        await bench.later(1)
        assert not control.leading
        status = await bench.get("/api/v1/status")
        assert "could not be renewed: etcd does not answer" in status["blocked"]
        await agent.tell(engine("alpha-2", port=18001))
        await bench.later(1)
        assert bench.orders(agent) == [], "one too many is nothing to act on now"
        answer = await bench.client.get("/gateway/v1/routes?version=0")
        assert decode(answer.content, RouteTable).version >= version
        hand.until, hand.problem = float("inf"), ""
        await bench.later(1)
        assert not control.leading
        assert hand.asked == [control.epoch_seen]
        hand.epochs = [12]
        await bench.later(1)
        assert (control.leading, control.state.epoch) == (True, 12)
        assert control.state.wanted_s == {}, "A24: its term is another"


@scenario
async def test_f25_a_lost_lease_ends_control_and_it_writes_nothing_more(bench: Bench) -> None:
    hand = with_lease(bench, held=True)
    refused: list[str] = []
    try:
        async with bench.running() as control:
            control.keeper.keep = lambda *_, **__: refused.append("kept")  # type: ignore[method-assign, assignment]
            hand.lost = "another has it"
            await bench.later(1)
    except* LeaseLostError:
        refused.append("ended")
    assert refused == ["ended"]


@scenario
async def test_f16_f33_an_epoch_seen_elsewhere_is_exceeded_before_the_answer(bench: Bench) -> None:
    hand = with_lease(bench, held=True)
    async with bench.running() as control:
        agent = Agent(bench, epoch_seen=70, leader_uuid="somebody")
        await agent.register()
        assert hand.asked == [70]
        assert (agent.said.epoch, agent.said.leader) == (71, True)
        assert control.leading


@scenario
async def test_the_leader_shows_who_stands_by_and_how_far_behind(bench: Bench) -> None:
    with_lease(bench, held=True)
    async with bench.running() as control:
        await Agent(bench).register()
        told = {"name": "b:2", "url": "http://b:8801", "version": "1", "nodes": [], "catalog": "x"}
        said = await bench.post("/api/v1/standbys", told)
        assert said["nodes"] == ["box1"]
        assert said["epoch"] == control.state.epoch
        await bench.later(2)
        (row,) = (await bench.get("/api/v1/status"))["leader"]["standbys"]
        assert row == {
            "name": "b:2",
            "url": "http://b:8801",
            "version": "1",
            "lag_s": 2.0,
            "missing": ["box1"],
            "same_catalog": False,
        }
        assert "http://b:8801" in control.routes.controls
        await bench.later(6)
        assert (await bench.get("/api/v1/status"))["leader"]["standbys"] == []


@scenario
async def test_what_operators_said_to_the_leader_before_counts(bench: Bench) -> None:
    """An inventory of another host is as old as its own last lead: pause, keys and failures come with the lease."""
    hand = with_lease(bench, held=True)
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        await settled(bench, agent)
        await bench.passes(20, agent)
        await bench.post("/api/v1/pause", {"why": "moving house"})
        assert b"moving house" in hand.intent
        assert hand.waited == len(hand.intent), "he is told when it is left, not before"
        key = await bench.post("/api/v1/keys", {"name": "cli"})
        shard = await agent.start_one()
        await agent.tell(replace(shard, state="failed", error="no such weights", gave_up=True))
        silent = Agent(bench, "box2")
        silent.runs(engine("beta-1", "beta"))
        await silent.register()
        await settled(bench, silent)
        await bench.passes(20, agent)
        left = hand.intent
        assert key["key"].encode() not in left
    (bench.folder / "other").mkdir()
    other = Bench(bench.folder / "other")
    hand = with_lease(other, held=True)
    hand.intent, hand.epochs = left, [9]
    async with other.running() as control:
        assert "moving house" in control.state.paused
        assert list(control.keeper.keys) == ["cli"]
        assert control.state.failures["alpha"][0].error == "no such weights"
        assert set(control.state.nodes) == {"box1", "box2"}
        assert [s.report.shard for s in control.state.nodes["box2"].shards] == ["beta-1/0"]
        assert control.state.nodes["box2"].unreachable_before
        assert (await other.get("/api/v1/status"))["settling"]["waiting_for"] == ["box1"]


@scenario
async def test_f34_the_catalog_is_read_after_winning(bench: Bench) -> None:
    hand = with_lease(bench)
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        bench.catalog.write_text(bench.catalog.read_text().replace("alpha", "gamma"))
        assert list(bench.control.state.catalog.models) == ["alpha"]
        hand.comes()
        await bench.later(1)
        await settled(bench, agent)
        (start,) = [o for o in await agent.poll() if isinstance(o, Start)]
        assert start.model == "gamma"


def test_everything_that_a_memory_has_is_left_for_the_next_leader() -> None:
    """A new field of it that is not: a leader of another host would not know it."""
    elsewhere = {"epoch", "nodes"}  # the lease's, and in three forms
    there = {f.removesuffix("_s") for f in Memory.__struct_fields__} - elsewhere
    assert there <= set(intent._Wire.__struct_fields__)


def test_what_was_left_is_the_same_bytes_while_nothing_changed() -> None:
    """Else every pass would write to etcd; the clocks drift apart by microseconds."""
    state = State(failures={"a": (Failure("i", "p", 5.0, "e"),)}, woken_s={"a": 7.0})
    one = intent.written(state, {}, Moment(100.0, 1_700_000_100.0))
    assert intent.written(state, {}, Moment(160.0, 1_700_000_160.000_4)) == one
    assert intent.read(b"", Moment(0, 0), print) is None
    said: list[str] = []
    assert intent.read(b"\xff", Moment(0, 0), said.append) is None
    assert "cannot be read" in said[0]


def test_what_is_too_large_is_left_without_what_silent_nodes_ran() -> None:
    node = Node(
        report=NodeReport(node="box1", labels={"x": "y" * intent.BYTES}), lost_s=1.0, settled=True
    )
    data = intent.written(State(nodes={"box1": node}), {}, Moment(2.0, 2.0))
    left = intent.read(data, Moment(2.0, 2.0), print)
    assert left is not None
    assert (left.nodes, left.memory.nodes) == (frozenset({"box1"}), ())
    merged = intent.merged(Memory(nodes=((NodeReport(node="old"), False),)), left, Memory())
    assert [(r.node, silent) for r, silent in merged.nodes] == [("box1", False)]


def test_a_node_that_was_forgotten_is_not_remembered_by_a_standby() -> None:
    """It has seen it go silent, and not the operator's word for it."""
    gone = ((NodeReport(node="gone"), True),)
    stored = Memory(epoch=3, nodes=((NodeReport(node="box1"), False),))
    found = intent.merged(stored, None, Memory(nodes=gone))
    assert [r.node for r, _ in found.nodes] == ["box1"]
    lost_file = intent.merged(Memory(), None, Memory(nodes=gone))
    assert [r.node for r, _ in lost_file.nodes] == ["gone"]


def test_a67_failures_of_two_leaders_are_in_the_order_in_which_they_happened() -> None:
    """The last one is the newest: the back-off runs from it."""
    early, late = Failure("i1", "main", 50.0, "x"), Failure("i2", "main", 100.0, "x")
    left = Memory(failures={"m": (late,)})
    merged = intent.merged(left, None, Memory(failures={"m": (early,)}))
    assert merged.failures["m"] == (early, late)
