"""Who leads, and how it is known (F32, F33)."""

import os
import socket

from tests.control.bench import Agent, Bench, scenario


@scenario
async def test_f32_a_leader_is_known_by_host_pid_and_a_random_id(bench: Bench) -> None:
    """F33: and each time it leads it is another, with a higher epoch, though nothing else changed."""
    seen = []
    for _ in range(2):
        async with bench.running() as control:
            assert control.name == f"{socket.gethostname()}:{os.getpid()}"
            seen.append((control.state.epoch, control.state.leader_uuid))
    (first, one), (second, other) = seen
    assert second > first
    assert one != other
    assert len({*one}) > 4


@scenario
async def test_a_leader_says_which_nodes_it_expects(bench: Bench) -> None:
    async with bench.running():
        (event,) = bench.events("leader")
        assert event["why"] == "leads with epoch 1; no node is expected yet"
        await Agent(bench).register()
    async with bench.running():
        assert bench.events("leader")[-1]["why"] == "leads with epoch 2; expected: box1"
