"""A network that breaks, a leader that is paused, a store that is gone or forgets: real etcd, controls, agents.

After each: no GPU twice at any moment, no older epoch obeyed, 0 engines restarted, one leader, every request for what
is loaded answered (A24, F17, F21-F31, F60-F63). SEVERAL_LONG=1: a leader is paused for 60 s, the store is
away for 60 s, and a link flaps for 60 s, instead of seconds.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from scripts.fleet import wait_for
from tests import beds
from tests.e2e.bridge import bridged
from tests.e2e.several import BOXES, CLIENT, NODES, TTL_S, Several, judged
from tests.engines import fake_nvml

pytestmark = [pytest.mark.netns, pytest.mark.etcd, beds.needs("ip", "iptables", "cc")]
LONG = bool(os.environ.get("SEVERAL_LONG"))
#: Longer than any lease lives.
OVER_S = 60.0 if LONG else TTL_S + 1.5


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    library = fake_nvml.build(tmp_path_factory.mktemp("nvml"))
    assert library is not None
    with bridged(*BOXES, *NODES) as bridge:
        made = Several(tmp_path_factory.mktemp("several"), bridge, library)
        try:
            made.begin()
            yield made
        finally:
            made.close()


def others(leader: str) -> tuple[str, ...]:
    return tuple(box for box in BOXES if box != leader)


def no_decision(bed: Several, box: str) -> None:
    """It does not lead: it says so, and refuses what an operator asks of it."""
    assert not bed.of(box).get("leading")
    refused = bed.verb(box, "pause")
    assert refused.status_code in (409, 503), refused.text
    assert refused.json()["error"]["code"] == "not_leading"


def ends(bed: Several, box: str) -> None:
    """Once it can ask it finds that another leads, and ends (F25)."""
    assert bed.processes[box].wait(60) == 1
    assert "the lease is lost" in bed.log(box)


def test_f30_f31_a_leader_without_its_store_is_replaced_and_commands_nothing(bed: Several) -> None:
    leader = bed.whole()
    with judged(bed):
        began = time.monotonic()
        bed.bridge.lose_port(leader, CLIENT)
        second = bed.leads_of(*others(leader))
        assert time.monotonic() - began < TTL_S + 2
        no_decision(bed, leader)
        bed.decides(second)  # also routed, though gateways can reach the old one
        bed.bridge.heal()
        ends(bed, leader)


def test_f23_a_leader_that_is_not_answered_by_its_store_stops_in_time(bed: Several) -> None:
    """What it sends arrives and renews its lease; what comes back is lost."""
    leader = bed.whole()
    with judged(bed):
        bed.bridge.lose_port(leader, CLIENT, way=["in"])
        second = bed.leads_of(*others(leader))
        no_decision(bed, leader)
        bed.bridge.heal()
        ends(bed, leader)
        assert bed.leaders() == [second]


@pytest.mark.parametrize("way", [("in", "out"), ("in",), ("out",)])
def test_f60_f63_a_leader_without_its_agents_keeps_the_lead_and_ends_nothing(
    bed: Several, way: tuple[str, ...]
) -> None:
    leader = bed.whole()
    epoch = bed.of(leader)["epoch"]
    with judged(bed):
        bed.bridge.lose(leader, *NODES, way=way)  # type: ignore[arg-type]
        time.sleep(OVER_S / 3)
        assert bed.leaders() == [leader]
        bed.bridge.heal()
        assert bed.whole() == leader
        assert bed.of(leader)["epoch"] == epoch


def test_f31_a_box_cut_off_with_control_and_store_is_the_minority(bed: Several) -> None:
    """Everything else of it is lost too, a gateway's calls included."""
    leader = bed.whole()
    with judged(bed):
        bed.bridge.lose(leader, *others(leader), *NODES, "here")
        second = bed.leads_of(*others(leader))
        bed.decides(second)
        bed.bridge.heal()
        ends(bed, leader)


def test_a_link_to_the_store_that_flaps_changes_leaders_at_most(bed: Several) -> None:
    leader = bed.whole()
    over_s = time.monotonic() + (60 if LONG else 3)
    with judged(bed):
        while time.monotonic() < over_s:
            bed.bridge.lose_port(leader, CLIENT)
            bed.bridge.lose(leader, *NODES)
            time.sleep(0.4)
            bed.bridge.heal(leader)
            time.sleep(0.4)
        bed.whole()


def test_f22_a_leader_that_was_paused_wakes_and_ends(bed: Several) -> None:
    leader = bed.whole()
    with judged(bed):
        bed.processes[leader].send_signal(signal.SIGSTOP)
        second = bed.leads_of(*others(leader))
        if LONG:
            time.sleep(OVER_S)
        bed.processes[leader].send_signal(signal.SIGCONT)
        ends(bed, leader)
        assert bed.leaders() == [second]


def test_f30_without_the_store_nothing_stops_and_nobody_decides(bed: Several) -> None:
    leader = bed.whole()
    epoch = bed.of(leader)["epoch"]
    with judged(bed):
        bed.etcds.stop()
        wait_for(lambda: not bed.leaders(), "nobody leads", 2 * TTL_S)
        time.sleep(OVER_S - TTL_S)
        assert bed.leaders() == []
        for box in BOXES:
            no_decision(bed, box)
        bed.etcds.copied()  # the backup of the next test
        bed.etcds.start()
        leader = bed.whole()
    assert bed.of(leader)["epoch"] > epoch


@pytest.mark.parametrize("into", ["an older one", "an empty one"])
def test_f16_a_store_that_was_rolled_back_takes_no_epoch_back(bed: Several, into: str) -> None:
    """The epochs that the agents obeyed count (design.md 3)."""
    leader = bed.whole()
    with judged(bed):
        if into == "an older one":
            bed.kill(first := leader)
            leader = bed.leads_of(*others(first))
            bed.start(first)
        epoch = bed.of(leader)["epoch"]
        bed.etcds.stop()
        if into == "an older one":
            bed.etcds.put_back()
        else:
            bed.etcds.wipe()
        bed.etcds.start()
        wait_for(
            lambda: any(bed.settled(b) and bed.of(b)["epoch"] > epoch for b in BOXES),
            f"somebody leads above epoch {epoch}",
            20.0,
        )
        leader = bed.whole()
        assert bed.of(leader)["epoch"] > epoch


def test_a2_f63_all_that_decides_is_gone_at_once_and_engines_and_clients_do_not_notice(
    bed: Several,
) -> None:
    bed.whole()
    with judged(bed):
        bed.kill(*BOXES, *NODES)
        bed.etcds.stop()
        time.sleep(0.5)
        bed.etcds.start()
        bed.start(*BOXES, *NODES)
        bed.decides(bed.whole())
