"""How much GPU memory each engine has been seen to hold at most, for control to place the next run by (A62).

Only remembers the greatest figure of this process's life: an engine that runs holds its memory, so that a new agent
sees it again.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.types.node import AgentState, GpusSeen

#: Told in steps of this, upwards: a figure that trembles is no news.
STEP_BYTES = 64 << 20


def seen(state: AgentState, event: GpusSeen) -> AgentState:
    """The state with the peaks of this reading in it."""
    records = dict(state.records)
    for key, now_bytes in event.held.items():
        record = records.get(key)
        if record is None or record.ended:
            continue
        peak_bytes = -(-now_bytes // STEP_BYTES) * STEP_BYTES
        if peak_bytes > (record.watch.peak_bytes or 0):
            watch = replace(record.watch, peak_bytes=peak_bytes)
            records[key] = replace(record, watch=watch)
    return replace(state, records=records)
