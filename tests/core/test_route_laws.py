"""What every route table keeps: nobody is sent to what is not live, complete and claimed; order never matters."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmgw.core import route
from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.fresh import Memory, started
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.messages import SHARD_STATES, ShardReport
from llmgw.core.types.routes import RouteTable
from llmgw.core.types.state import SessionLost, State
from tests.core.world import catalog, model, node, profile, running, shard


def table(state: State) -> RouteTable:
    return route.table(state, survey(state), 7)


SHARDS = st.lists(
    st.builds(
        lambda n, rank, want, state, where, port, desired: (
            where,
            shard(
                f"{n}/{rank}",
                world_size=want,
                state=state,
                port=port,
                desired=desired,
                endpoint=f"http://{where}:{port}" if rank == 0 else "",
            ),
        ),
        st.sampled_from(["alpha-1", "alpha-2", "deep-1", "gone-1"]),
        st.integers(0, 2),
        st.integers(1, 3),
        st.sampled_from(SHARD_STATES),
        st.sampled_from(["box1", "box2"]),
        st.integers(18000, 18002),
        st.sampled_from(["running", "running", "draining", "stopped"]),
    ),
    max_size=6,
)


@given(SHARDS, st.booleans(), st.sets(st.sampled_from(["box1", "box2"])))
def test_a61_no_table_ever_sends_anybody_to_what_is_not_live_and_complete(
    placed: list[tuple[str, ShardReport]], fresh: bool, lost: set[str]
) -> None:
    cat = catalog(model("alpha", low=1, high=2), model("deep", profile(nodes=2), low=1))
    reports = [node(b, *(s for w, s in placed if w == b)) for b in ("box1", "box2")]
    memory = Memory(nodes=tuple((r, False) for r in reports))
    state = started(cat, memory, now=0.0, settle_timeout_s=60.0, keep_unknown=False)
    state = state if fresh else running(cat, *reports)
    for name in lost:
        state = observe(state, SessionLost(name), 1.0)
    here = [s for n in state.nodes.values() for s in n.shards]
    for name, m in table(state).models.items():
        assert (m.status == "loaded") is any(r.state == "ready" for r in m.replicas)
        for r in m.replicas:
            mine = [s for s in here if s.incarnation == r.incarnation and s.holds]
            lead = [s for s in mine if s.rank == 0 and s.report.endpoint == r.endpoint]
            assert r.endpoint
            assert any(s.report.state in ("ready", "draining") for s in lead)
            up = {s.rank for s in mine if s.report.state in ("ready", "draining")}
            assert len(up) >= min(s.report.world_size or 1 for s in mine)
            assert cat.resolve(mine[0].report.model) is cat.models[name]
            if r.state == "ready":
                assert any(s.report.desired == "running" for s in lead)


@given(SHARDS, st.randoms(use_true_random=False))
def test_a10_the_table_does_not_depend_on_the_order_of_registrations(
    placed: list[tuple[str, ShardReport]], random: Any
) -> None:
    cat = catalog(model("alpha", low=1, high=2), model("deep", profile(nodes=2), low=1))
    reports = [node(b, *(s for w, s in placed if w == b)) for b in ("box1", "box2")]
    mixed = random.sample(reports, 2)
    assert table(running(cat, *mixed)) == table(running(cat, *reports))
