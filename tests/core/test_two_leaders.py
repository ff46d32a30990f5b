"""Two controls with a file's lease each, and two of one file: whom an agent obeys, over restarts of either side."""

from llmgw.core.types.messages import SendReport, Token
from llmgw.core.types.node import Session, SessionLost, SessionOpened, Spawn, StoreToken
from tests.core.agent_bench import C1, C2, Bench, start

ONE, TWO = "file:one", "file:two"


def pass_s(b: Bench, seconds: float) -> None:
    b.now += seconds


def test_a_standby_of_the_same_file_is_obeyed_at_once() -> None:
    """F21: it has the epochs of the one before; whether that is still connected nobody asks."""
    b = Bench(heard=False)
    b.session(C1, "s1", "L1", lease=ONE).session(C2, "s2", "", leader=False, lease=ONE)
    b.report()
    assert b.command(start(session="s2", epoch=2, leader_uuid="L2"), C2).of(Spawn)
    assert b.report(epoch=1).refusal()[0] == "lower_epoch"


def test_f31_a_control_of_another_file_does_not_take_a_node_over_a_restart() -> None:
    """The one that was obeyed is back within a moment; in between the other was obeyed, and then it was the first."""
    b = Bench(heard=False)
    b.session(C1, "s1", "L1", lease=ONE).session(C2, "s2", "L2", lease=TWO)
    b.report()
    assert b.state.token == Token(1, "L1", ONE)
    b(SessionLost(C1))
    pass_s(b, 20)
    reason, _, why = b.command(start(session="s2", epoch=9, leader_uuid="L2"), C2).refusal()
    assert reason == "two_leaders"
    assert "until 20 s ago" in why
    b.session(C1, "s3", "L3", lease=ONE).report(session="s3", epoch=2, leader_uuid="L3")
    assert b.state.token == Token(2, "L3", ONE)
    b(SessionLost(C1))
    pass_s(b, 61)
    assert b.command(start(session="s2", epoch=9, leader_uuid="L2"), C2).of(Spawn)


def test_f31_an_agent_that_restarts_knows_whose_it_was() -> None:
    b = Bench(heard=False, token=Token(1, "L1", ONE))
    newer = Session(session="s2", leader_uuid="L2", epoch=9, lease=TWO)
    assert b(SessionOpened(control=C2, session=newer)).of(StoreToken) == []
    assert (
        b.command(SendReport(session="s2", epoch=9, leader_uuid="L2"), C2).refusal()[0]
        == "two_leaders"
    )
    pass_s(b, 61)
    again = Session(session="s4", leader_uuid="L2", epoch=9, lease=TWO)
    assert b(SessionOpened(control=C2, session=again)).one(StoreToken).token == Token(9, "L2", TWO)
