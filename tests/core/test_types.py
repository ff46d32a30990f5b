"""What the values promise by themselves: names, defaults, and the few questions they answer about their own fields."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.types import messages as m
from llmgw.core.types.catalog import Catalog, Model, Scaling
from llmgw.core.types.plan import DIFFERENCES, QUIET, VERDICTS, NodeView, Plan, Replica
from llmgw.core.types.state import PLACED, Node, Shard, State
from tests.core.world import catalog, model, node, profile, shard

# --- catalog ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("coder", "coder"),  # its own name, though another model has a glob for it
        ("fast", "small"),  # an exact alias, though a model before it has a glob for it
        ("fast-1", "big"),
        ("gpt-x", "small"),
        ("Fast-1", None),  # names are told apart by case
        ("nobody", None),
        ("", None),
    ],
)
def test_a14_a_name_comes_before_an_alias_and_an_alias_before_a_glob(
    asked: str, found: str | None
) -> None:
    cat = catalog(
        model("big", aliases=("fast*", "cod*")),
        model("small", aliases=("fast", "gpt-*")),
        model("coder"),
    )
    answer = cat.resolve(asked)
    assert (answer.name if answer else None) == found


def test_an_alias_without_a_star_is_no_pattern() -> None:
    assert catalog(model("a", aliases=("b?", "[c]"))).resolve("bx") is None


NAMES = st.sampled_from(["a", "b", "c", "a*", "b-*", "*"])


@given(st.lists(st.lists(NAMES, max_size=3, unique=True), max_size=3), st.sampled_from(["a", "b"]))
def test_a14_a_model_always_answers_to_its_own_name(aliases: list[list[str]], own: str) -> None:
    others = [model(f"other{n}", aliases=tuple(found)) for n, found in enumerate(aliases)]
    for order in itertools.permutations([*others, model(own)]):
        answer = catalog(*order).resolve(own)
        assert answer is not None
        assert answer.name == own


def test_fingerprint_and_weights_are_those_of_the_node_else_the_default_else_unknown() -> None:
    here = profile(
        fingerprints={"box1": "1:b", "default": "1:d"}, weights={"box1": "/b", "default": "/d"}
    )
    assert (here.fingerprint_on("box1"), here.weights_on("box1")) == ("1:b", "/b")
    assert (here.fingerprint_on("box2"), here.weights_on("box2")) == ("1:d", "/d")
    bare = profile(fingerprints={})
    assert (bare.fingerprint_on("box1"), bare.weights_on("box1")) == ("", "")


@pytest.mark.parametrize(("low", "high", "on_demand"), [(0, 1, True), (1, 2, True), (2, 2, False)])
def test_on_demand_is_a_model_with_a_replica_that_may_sleep(
    low: int, high: int, on_demand: bool
) -> None:
    assert model("a", scaling=Scaling(min=low, max=high)).on_demand is on_demand


def test_a_profile_is_found_by_its_name() -> None:
    two = Model(name="a", profiles=(profile("x"), profile("y")))
    assert two.profile("y") is two.profiles[1]
    assert two.profile("z") is None


# --- messages --------------------------------------------------------------------------------


def test_a60_every_state_is_known_and_no_state_is_both_up_and_over() -> None:
    assert {*m.SHARD_STATES} >= m.TERMINAL | m.STARTING | m.LIVE
    for one, other in itertools.combinations((m.TERMINAL, m.STARTING, m.LIVE), 2):
        assert not one & other
    assert {*m.SHARD_STATES} - m.TERMINAL - m.STARTING - m.LIVE == {"stopping", "unknown"}


def test_the_inventory_of_the_contract_is_this_message_with_its_names() -> None:
    said = b"""{"node": "box1", "capacity": {"cpu_cores": 16, "host_memory": 64, "ports": [18000, 18999]},
      "gpus": [{"uuid": "GPU-1", "memory": 24, "memory_used": 3}],
      "shards": [{"shard": "a-1/0", "resources": {"gpu_memory": 18, "host_memory": 4}}],
      "foreign": [{"pid": 4242, "gpu": "GPU-1", "memory": 2}]}"""
    report = msgspec.json.decode(said, type=m.NodeReport)
    assert report.capacity.host_memory_bytes == 64
    assert report.gpus is not None
    assert (report.gpus[0].memory_bytes, report.gpus[0].memory_used_bytes) == (24, 3)
    assert report.shards[0].resources == m.Resources(gpu_memory_bytes=18, host_memory_bytes=4)
    assert report.foreign[0].memory_bytes == 2
    again = msgspec.json.decode(msgspec.json.encode(report), type=m.NodeReport)
    assert again == report


def test_f55_what_an_older_agent_leaves_out_is_unknown_not_zero() -> None:
    report = msgspec.json.decode(b'{"node": "box1", "shards": [{"shard": "x"}]}', type=m.NodeReport)
    (old,) = report.shards
    assert (old.fingerprint, old.incarnation, old.artefact) == ("", "", "")
    assert (old.rank, old.world_size, old.resources, old.compute) == (None, None, None, None)
    assert (report.gpus, report.capacity.power_w, old.state) == (None, None, "unknown")


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("start", m.Start(shard="a-1/0", replica="a-1", incarnation="i", model="a", profile="p")),
        ("drain", m.DrainShard(shard="a-1/0", incarnation="i", reason="idle")),
        ("stop", m.StopShard(shard="a-1/0", incarnation="i", reason="idle")),
        ("forget", m.ForgetShard(shard="a-1/0", incarnation="i")),
        ("report", m.SendReport()),
        (
            "take",
            m.Take(
                shard="a-1/0",
                incarnation="i",
                pid=4242,
                start_ticks=7,
                start=m.Start(
                    shard="a-1/0", replica="a-1", incarnation="i", model="a", profile="p"
                ),
            ),
        ),
    ],
)
def test_a_command_comes_back_as_what_it_was_by_its_kind(kind: str, command: m.Command) -> None:
    wire = msgspec.json.encode(m.Commands(commands=(command,)))
    assert msgspec.json.decode(wire)["commands"][0]["kind"] == kind
    assert msgspec.json.decode(wire, type=m.Commands).commands == (command,)


# --- control's picture -----------------------------------------------------------------------


@pytest.mark.parametrize("state", m.SHARD_STATES)
def test_a43_a44_all_that_has_not_verifiably_ended_holds(state: str) -> None:
    held = Shard(node="box1", report=shard("a-1/0", state=state))
    assert held.holds is (state not in ("stopped", "failed"))
    assert not Shard(node="box1", report=held.report, missing=True).holds


def test_a_shard_without_an_incarnation_is_keyed_by_what_its_older_agent_told() -> None:
    old = Shard(node="box1", report=shard("a-1/0", incarnation=""))
    assert old.key == ("?a/a-1", 0)
    assert Shard(node="box1", report=m.ShardReport(shard="x")).rank == 0
    new = Shard(node="box1", report=shard("a-1/1"), origin=PLACED)
    assert new.key == ("inc-a-1", 1)


@pytest.mark.parametrize(
    ("settled", "connected", "protocol", "usable"),
    [
        (True, True, 1, True),
        (False, True, 1, False),
        (True, False, 1, False),
        (True, True, 0, False),
    ],
)
def test_a_node_is_placed_on_when_it_has_settled_is_heard_and_understands_us(
    settled: bool, connected: bool, protocol: int, usable: bool
) -> None:
    box = Node(report=node("box1", protocol=protocol), settled=settled, connected=connected)
    assert box.usable is usable


def test_route_tables_rise_over_restarts_because_each_epoch_begins_above_the_last() -> None:
    assert State(epoch=3).first_version == 3_000_001
    assert State(epoch=4).first_version > State(epoch=3).first_version + 900_000


def test_control_settles_until_it_has_settled() -> None:
    assert State().settling
    assert not State(settled_s=0.0).settling


# --- the plan --------------------------------------------------------------------------------


def test_every_verdict_is_either_a_difference_or_quiet() -> None:
    assert {*VERDICTS} == DIFFERENCES | QUIET
    assert not DIFFERENCES & QUIET


@pytest.mark.parametrize("state", ["assembling", "starting", "ready", "degraded", "draining"])
def test_a61_a_replica_is_complete_and_ready_in_one_state_only(state: str) -> None:
    r = Replica(replica="a-1", incarnation="i", model="a", profile="p", have=1, want=1, state=state)
    assert r.complete_and_ready is (state == "ready")


def test_a55_a_plan_is_complete_when_every_node_answered() -> None:
    heard = NodeView(node="box1", answered=True, shards=0)
    silent = NodeView(node="box2", answered=False, shards=1, error="no answer")
    assert Plan().complete
    assert Plan(nodes=(heard,)).complete
    assert not Plan(nodes=(heard, silent)).complete


def test_an_empty_catalog_knows_nobody() -> None:
    assert Catalog().resolve("a") is None
