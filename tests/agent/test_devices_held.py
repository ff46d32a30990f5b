"""What each engine of ours is seen to hold on the GPU where that is most (A62)."""

from __future__ import annotations

from llmgw.agent.devices import _most
from llmgw.agent.gpu import Use
from llmgw.core.types.messages import Start
from llmgw.core.types.record import Record


def test_a62_all_processes_of_an_engine_count_together_gpu_by_gpu() -> None:
    one, two = (
        Record(
            start=Start(shard=f"{n}-1/0", replica=f"{n}-1", incarnation="i", model=n, profile="p")
        )
        for n in ("a", "b")
    )
    own = [
        (one, Use(1, "GPU-0", 3)),
        (one, Use(2, "GPU-0", 4)),
        (one, Use(2, "GPU-1", 5)),
        (two, Use(9, "GPU-1", 1)),
    ]
    assert _most(own) == {("a-1/0", "i"): 7, ("b-1/0", "i"): 1}
    assert _most([]) == {}
