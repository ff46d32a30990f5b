"""An agent whose node has another address by now takes up engines that listen at the one they were started with.

Real agents and engines; the addresses are of loopback, of which Linux has sixteen million.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.agent.rig import Rig

BEFORE, NOW = "127.0.0.1", "127.0.0.2"


def moved(rig: Rig, **settings: Any) -> dict[str, Any]:
    """What the agent tells of its engine first, and after it has looked at it a few times."""
    rig.settings |= {"address": NOW, **settings}
    rig.again()
    told = rig.control.registers[-1]
    assert told["address"] == NOW
    (shard,) = told["shards"]
    time.sleep(1.5)  # a few probes, the first of which are quick
    now = rig.control.shards["alpha-1/0"]
    assert (now["endpoint"], now["state"], now["pid"]) == (shard["endpoint"], "ready", shard["pid"])
    return dict(shard)


def test_it_stays_ready_where_it_listens(rig: Rig) -> None:
    before = rig.start_agent().registered().ready()
    rig.kill9()
    shard = moved(rig)
    assert (shard["pid"], shard["endpoint"]) == (before["pid"], before["endpoint"])
    assert shard["endpoint"].startswith(f"http://{BEFORE}:")
    # What is started from now on listens where the node is.
    assert rig.ready(2)["endpoint"].startswith(f"http://{NOW}:")


def test_one_that_listens_everywhere_moves_with_its_node(rig: Rig) -> None:
    before = rig.start_agent().registered().ready(1, "--host", "0.0.0.0")
    rig.kill9()
    assert moved(rig)["endpoint"] == before["endpoint"].replace(BEFORE, NOW)


@pytest.mark.parametrize("wrong", ["", f"http://{NOW}:1"])
def test_a_journal_that_tells_another_address_is_put_right(rig: Rig, wrong: str) -> None:
    """An older agent wrote down its own new address, which its engine had never heard of."""
    before = rig.start_agent().registered().ready()
    rig.kill9()
    record = rig.record() | {"endpoint": wrong}
    rig.record_path().write_text(json.dumps(record))
    assert moved(rig)["endpoint"] == before["endpoint"]


@pytest.mark.parametrize("left", ["all", "a torn record", "its markers"])
def test_one_that_does_not_listen_yet_comes_up_where_it_was_told_to(rig: Rig, left: str) -> None:
    rig.start_agent().registered().start(1, "--late-listen", "4")
    before = rig.control.shard("alpha-1/0", "starting")
    rig.kill9()
    if left == "a torn record":
        rig.record_path().write_bytes(b"{")
    elif left == "its markers":
        rig.record_path().unlink()
    rig.settings |= {"address": NOW}
    rig.again()
    now = rig.control.shard("alpha-1/0", "ready")
    assert (now["pid"], now["endpoint"]) == (before["pid"], before["endpoint"])


def test_one_that_listens_is_found_whatever_is_left_of_it(rig: Rig) -> None:
    before = rig.start_agent().registered().ready()
    rig.kill9()
    rig.record_path().unlink()
    assert moved(rig)["endpoint"] == before["endpoint"]
