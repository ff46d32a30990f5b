"""What a pass says on the log: a failure is a warning that ends in the engine's own last words."""

from __future__ import annotations

from msgspec.structs import replace
from structlog.testing import capture_logs

from tests.control.bench import Agent, Bench, scenario


@scenario
async def test_a67_a_model_that_fails_for_good_is_a_warning_with_its_reason(bench: Bench) -> None:
    """Who reads the log of control alone must not have to look for the engine's."""
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        shard = await agent.start_one("loading")
        why = "gave up after 5 failures in 30 min: exit 1: cudaMalloc failed: out of memory"
        with capture_logs() as said:
            await agent.tell(replace(shard, state="failed", gave_up=True, error=why))
            await bench.passes(1, agent)
    (line,) = [e for e in said if e.get("kind") == "replica" and e.get("state") == "failed"]
    replica = shard.shard.rpartition("/")[0]
    assert line["log_level"] == "warning"
    assert line["event"] == f"{replica} is failed, 0 of 1 shards; {why}"
