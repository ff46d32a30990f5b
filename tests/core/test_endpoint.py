"""Where an engine is asked, and from where it can be: the address it was started with stays its own.

Its box may get another address, or leave loopback for one, while it runs on.
"""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core import route
from llmgw.core.adopt.survey import survey
from llmgw.core.endpoint import address, asked_at, endpoint, loopback
from llmgw.core.supervise.report import node_report
from llmgw.core.types.messages import LISTENS, Fabric, NodeReport
from llmgw.core.types.node import NodeFacts, Spawn
from llmgw.core.types.state import State
from tests.core.agent_bench import C1, Bench, start
from tests.core.world import catalog, model, node, profile, running, shard

CAT = catalog(model("alpha", profile(), low=1))
OWN = "http://127.0.0.1:18001"


@pytest.mark.parametrize(
    ("host", "url"),
    [("10.0.0.1", "http://10.0.0.1:80"), ("::1", "http://[::1]:80"), ("box1", "http://box1:80")],
)
def test_an_endpoint_tells_its_address(host: str, url: str) -> None:
    assert endpoint(host, 80) == url
    assert address(url) == host


def test_none_tells_none() -> None:
    assert address("") == ""


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("127.example", False),
        ("", False),
    ],
)
def test_loopback(host: str, own: bool) -> None:
    assert loopback(host) is own


# ---------------------------------------------------------------- the agent


def moved(**evidence: Any) -> Bench:
    """An agent came back and looked where its engine listens."""
    after = Bench().ready().restarted()
    return after.identified(leader="same", **evidence)


def test_an_engine_that_is_taken_up_again_is_asked_where_it_listens() -> None:
    b = moved(address="127.0.0.9")
    assert (b.record.state, b.record.endpoint) == ("ready", "http://127.0.0.9:18001")
    assert b.journaled()[b.record.key].endpoint == "http://127.0.0.9:18001"
    # Not told: this node's address.
    assert moved().record.endpoint == OWN


def test_its_next_attempt_is_told_of_todays_address() -> None:
    b = moved(address="127.0.0.9")
    b.session(C1, "s2", "L1")
    b.gone(1)
    assert b.one(Spawn).record.attempt == 2
    assert b.spawned().record.endpoint == OWN


def test_a_worker_of_a_group_is_asked_on_the_fabric_that_it_listens_on() -> None:
    facts = NodeFacts(
        node="box1", address="10.0.0.11", fabrics={"ib0": Fabric(address="10.1.0.11")}
    )
    assert asked_at(facts, start(fabric="ib0", health=LISTENS)) == "10.1.0.11"
    for elsewhere in (start(fabric="ib0"), start(fabric="ib1", health=LISTENS)):
        assert asked_at(facts, elsewhere) == "10.0.0.11"


def test_an_agent_says_whose_loopback_its_own_is() -> None:
    b = Bench()
    assert node_report(b.state, for_register=True).loopback == b.state.facts.loopback


# ---------------------------------------------------------------- control


def there(where: str, url: str, loopback_of: str = "boot-1:4") -> State:
    report = node("box1", shard("alpha-1/0", endpoint=url), address=where, loopback=loopback_of)
    return running(CAT, report)


def warned(state: State) -> tuple[str, ...]:
    return survey(state).warnings


def only(state: State) -> str:
    (found,) = route.table(state, survey(state), 1).models["alpha"].replicas
    return found.loopback


def test_what_left_loopback_behind_is_said_once_and_goes_on() -> None:
    state = there("10.0.0.11", OWN)
    (said,) = warned(state)
    assert said == (
        "alpha-1 listens on 127.0.0.1 of box1 only, whose address is 10.0.0.11 by now: gateways on box1 use it, those "
        "on other boxes cannot; when it suits, `llmgw stop alpha-1`: the next one listens on 10.0.0.11"
    )
    (verdict,) = survey(state).verdicts
    assert verdict.verdict == "keep"


@pytest.mark.parametrize(
    ("where", "url"),
    [("127.0.0.1", OWN), ("10.0.0.11", "http://10.0.0.11:18001"), ("10.0.0.11", "")],
)
def test_nothing_is_said_where_all_is_as_it_was_asked_for(where: str, url: str) -> None:
    assert warned(there(where, url)) == ()


def test_what_nothing_claims_is_nobodys_to_reach() -> None:
    stranger = node("box1", shard("gone-1/0", endpoint=OWN), address="10.0.0.11")
    assert warned(running(CAT, stranger)) == ()


def test_a_route_says_from_whose_loopback_it_can_be_taken() -> None:
    """Another box has a loopback too, and on the same port perhaps another model."""
    assert only(there("10.0.0.11", OWN)) == "boot-1:4"
    assert only(there("127.0.0.1", OWN)) == "boot-1:4"
    assert only(there("10.0.0.11", "http://10.0.0.11:18001")) == ""
    assert only(there("127.0.0.1", OWN, loopback_of="")) == ""  # an older agent does not say


def test_an_older_agents_report_says_nothing_of_it() -> None:
    assert NodeReport(node="box1").loopback == ""
