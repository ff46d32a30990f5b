"""The talk with control, at its edges: wrong token, control away, a newer control, a lost answer, another leader."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from llmgw.agent.link import COMING_UP_S, Link, Owner
from llmgw.core.types.messages import SendReport
from tests.agent.fake_control import FakeControl
from tests.agent.rig import Rig, alive, until


def test_a_wrong_token_is_said_once_and_retried(tmp_path: Path) -> None:
    rig = Rig(tmp_path, token="wrong", control_token="right")
    try:
        rig.start_agent()
        rig.control.wait(lambda: rig.control.unauthorised >= 3, "three tries")
        line = rig.said("refuses this agent (401): wrong token")
        assert "set LLMGW_NODE_TOKEN" in line
        assert rig.log().count("refuses this agent") == 1
        assert "wrong " not in line.replace("wrong token", "")
        rig.control.token = "wrong"
        rig.registered()
    finally:
        rig.close()


def test_a_token_that_comes_later_needs_no_restart(tmp_path: Path) -> None:
    """`llmgw up` lays one there, and so may a person; control knows whom it refuses meanwhile."""
    rig = Rig(tmp_path, control_token="right")
    try:
        rig.start_agent()
        rig.control.wait(lambda: rig.control.unauthorised >= 2, "two tries")
        (rig.state_dir / "node-token").write_text("right\n")
        rig.registered()
        assert rig.control.nodes == {"box1"}
    finally:
        rig.close()


def test_a_refusal_is_said_once_though_its_numbers_go_on(rig: Rig) -> None:
    """A taken name was a line a try: `heard 2 s ago`, `heard 3 s ago`."""
    tries = 0

    def refuse(_body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        nonlocal tries
        tries += 1
        with rig.control.changed:
            rig.control.changed.notify_all()
        said = f"box1 has another node id and was heard {tries} s ago"
        return 409, {"error": {"code": "duplicate_node", "message": said, "hint": "try --node"}}

    rig.control.register = refuse  # type: ignore[method-assign, assignment]
    rig.start_agent()
    rig.control.wait(lambda: tries >= 3, "three tries")
    assert rig.log().count("another node id") == 1


def test_control_away_is_said_once_and_the_engine_runs_on(rig: Rig) -> None:
    """F5, F36."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    url = rig.control.url
    port = int(url.rpartition(":")[2])
    rig.control.close()
    line = rig.said(f"control {url} cannot be reached")
    assert "engines_kept=1" in line
    rig.control = FakeControl(port)
    rig.registered()
    assert rig.control.registers[0]["shards"][0]["pid"] == pid
    assert alive(pid)
    assert rig.log().count("cannot be reached") == 1


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.mark.parametrize(
    ("age_s", "error", "levels"),
    [
        (0.0, REFUSED, ["info"]),
        (COMING_UP_S, REFUSED, ["warning"]),
        (0.0, OSError(errno.EHOSTUNREACH, "No route to host"), ["warning"]),
    ],
)
def test_a_control_that_comes_up_beside_it_is_no_outage(
    age_s: float, error: OSError, levels: list[str]
) -> None:
    """`llmgw up` and a boot start both at once; what goes on is warned about, and what is no start at all at once."""
    state = SimpleNamespace(records={})
    link = Link(cast("Owner", SimpleNamespace(state=state)), "http://127.0.0.1:9", "")
    link.young_until_s -= age_s
    with capture_logs() as said:
        for _ in range(3):
            link._down(error, ("", ""))
    assert [line["log_level"] for line in said] == levels
    assert "control http://127.0.0.1:9 cannot be reached: " in link.state
    link.young_until_s -= COMING_UP_S
    with capture_logs() as later:
        for _ in range(3):
            link._down(error, ("", ""))
    assert [line["log_level"] for line in said + later].count("warning") == 1


def test_a_control_that_is_not_there_at_all_is_warned_of(rig: Rig) -> None:
    rig.control.close()
    rig.start_agent()
    rig.said("is not up yet")
    rig.said(f"control {rig.control.url} cannot be reached")


def test_a_lost_session_registers_again(rig: Rig) -> None:
    """410, F58: the same full list, adopted again."""
    rig.start_agent().registered()
    pid = rig.ready()["pid"]
    with rig.control.changed:
        rig.control.session = "gone"
        rig.control.changed.notify_all()
    rig.registered(2)
    assert [s["pid"] for s in rig.control.registers[1]["shards"]] == [pid]


def test_a_digest_that_differs_registers_again_and_not_for_ever(rig: Rig) -> None:
    """Once; when that settled nothing it is said, and orders are still heard."""
    rig.start_agent().registered()
    rig.ready()
    rig.control.match = False
    rig.drain()
    rig.registered(2)
    line = rig.said("control's picture of this node stays another, whatever is reported")
    assert rig.control.url in line
    rig.ready(2)
    rig.stop(2)
    rig.control.shard("alpha-2/0", "stopped")
    assert len(rig.control.registers) == 2
    assert rig.log().count("stays another") == 1
    rig.control.match = True
    rig.control.shard("alpha-1/0", "draining")


def test_a_report_fences_first(rig: Rig) -> None:
    """The epoch is on disk before the inventory goes out; lower ones are refused, also by the next agent (F21)."""
    rig.start_agent().registered()
    rig.control.send(SendReport(), epoch=7, leader_uuid="L7")
    rig.registered(2)
    report = rig.control.registers[1]
    assert (report["epoch_seen"], report["leader_uuid"]) == (7, "L7")
    rig.start()
    assert "epoch 1 is over, 7 was obeyed" in rig.control.refusal("lower_epoch")["why"]
    rig.kill9().again()
    rig.start(2)
    rig.control.wait(lambda: len(rig.control.refused) >= 2, "refused again")
    rig.control.epoch, rig.control.leader_uuid = 8, "L8"
    rig.ready(3)


def test_an_older_sessions_command_is_refused(rig: Rig) -> None:
    """F57, A42."""
    rig.start_agent().registered()
    start = rig.start()
    rig.control.shard("alpha-1/0", "ready")
    rig.control.send(start, session="s0", shard="alpha-2/0", replica="alpha-2")
    assert "of session s0" in rig.control.refusal("other_session")["why"]


def test_a_command_that_is_not_known_is_refused_not_choked_on(rig: Rig) -> None:
    """F55: a newer control."""
    rig.start_agent().registered()
    rig.control.send(SendReport(), kind="defrost", shard="alpha-1/0")
    assert "'defrost'" in rig.control.refusal("not_understood")["why"]
    rig.ready()


def test_the_agent_acknowledges_what_it_journaled(rig: Rig) -> None:
    rig.start_agent().registered()
    rig.ready()
    rig.control.wait(lambda: rig.control.acked == 1, "after=1")
    assert rig.record()["state"] == "ready"


def test_events_carry_a_counter_and_the_digest(rig: Rig) -> None:
    rig.start_agent().registered()
    rig.ready()
    rig.control.wait(lambda: len(rig.control.events) >= 4, "events")
    numbers = [e["n"] for e in rig.control.events]
    assert numbers == list(range(1, len(numbers) + 1))
    assert all(len(e["digest"]) == 64 for e in rig.control.events)


def test_two_controls_that_both_lead(tmp_path: Path) -> None:
    """With file leases the one obeyed first is obeyed; the other is told."""
    second = FakeControl()
    second.leader_uuid, second.epoch, second.leader = "L2", 5, False
    rig = Rig(tmp_path)
    rig.settings["controls"] = [rig.control.url, second.url]
    try:
        rig.start_agent().registered()
        second.wait(lambda: second.registers, "register at the second")
        rig.ready()
        second.leader = True
        second.send(SendReport())
        assert rig.control.url in second.refusal("two_leaders")["why"]
        until(lambda: second.shards.get("alpha-1/0", {}).get("state") == "ready", "told to both")
    finally:
        rig.close()
        second.close()


def test_a_standby_that_becomes_the_leader_is_heard(rig: Rig) -> None:
    rig.control.leader = False
    rig.start_agent().registered()
    rig.said("stands by")
    rig.control.leader = True
    rig.control.leader_uuid = "L2"
    rig.ready()


def test_a_control_that_is_given_twice_is_talked_to_once(tmp_path: Path) -> None:
    """Two links of one agent ended each other's session for ever."""
    rig = Rig(tmp_path)
    rig.settings["controls"] = [rig.control.url, f"{rig.control.url}/", rig.control.url]
    try:
        rig.start_agent().registered()
        rig.ready()
        assert len(rig.control.registers) == 1
    finally:
        rig.close()
