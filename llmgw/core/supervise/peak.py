"""How much memory each engine has been seen to hold at most, on a GPU and of the host's.

The first is what control places the next run by (A62), the second what people write `host_memory` by.
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
    for key in event.held.keys() | event.resident.keys():
        record = records.get(key)
        if record is None or record.ended:
            continue
        watch = replace(
            record.watch,
            peak_bytes=_most(record.watch.peak_bytes, event.held.get(key)),
            host_peak_bytes=_most(record.watch.host_peak_bytes, event.resident.get(key)),
        )
        if watch != record.watch:
            records[key] = replace(record, watch=watch)
    return replace(state, records=records)


def _most(before_bytes: int | None, now_bytes: int | None) -> int | None:
    if now_bytes is None:
        return before_bytes
    return max(before_bytes or 0, -(-now_bytes // STEP_BYTES) * STEP_BYTES) or before_bytes
