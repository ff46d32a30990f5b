"""What `status` warns of a node's GPUs, and of an engine that has some and uses none, in words.

Answers for: sentences out of what agents report alone. May not judge whether new work goes there: placement does.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmgw.core.capacity import gib
from llmgw.core.types.messages import TERMINAL
from llmgw.core.types.state import Node, Shard


def devices(name: str, node: Node) -> Iterator[str]:
    """What is wrong with its GPUs: not known (F59), lost (F72), not for new work, held beyond what was given (F73)."""
    report = node.report
    if report.gpus is None or report.gpus_error:
        yield f"the GPUs of {name} are not known: {report.gpus_error or 'is the driver up?'}"
    yield from _power(name, node)
    index = {g.uuid: g.index for g in report.gpus or ()}
    for gpu in report.gpus or ():
        if gpu.trouble:
            state = "lost" if gpu.lost else "ok" if gpu.healthy else "not used for new work"
            yield f"GPU {gpu.index} of {name} is {state}: {gpu.trouble}"
    for f in report.foreign:
        if f.shard:
            yield (
                f"{f.shard} on {name} holds {gib(f.memory_bytes)} GiB of GPU {index.get(f.gpu, f.gpu)} "
                "beyond what it was given (gpu_memory of its profile)"
            )
    yield from dict.fromkeys(f"pid {f.pid} on {name} {f.why}" for f in report.foreign if f.why)


def _power(name: str, node: Node) -> Iterator[str]:
    """What its GPUs may draw by their own limits, against what the node may: nothing else enforces its budget."""
    budget_w, gpus = node.report.capacity.power_w, node.report.gpus or ()
    limits_w = [g.power_limit_w for g in gpus if g.power_limit_w is not None and not g.lost]
    if budget_w is not None and sum(limits_w) > budget_w:
        yield (
            f"the {len(limits_w)} GPU{'s' * (len(limits_w) > 1)} of {name} may draw {sum(limits_w):g} W by their power "
            f"limits, and the node is to draw {budget_w:g} W (--power-w): lower their limits, or raise the figure"
        )


def fallen_back(node: str, shard: Shard) -> Iterator[str]:
    """A69: an engine that has GPUs and put nothing on them is slow, and nothing else says so."""
    report = shard.report
    compute = report.compute
    if compute is None or not report.gpus or report.state in TERMINAL or shard.missing:
        return
    if compute.layers_gpu == 0 or (compute.device or "").lower() == "cpu":
        of = f" of {compute.layers_total}" if compute.layers_total else ""
        put = "" if compute.layers_gpu is None else f", {compute.layers_gpu}{of} layers on the GPU"
        yield (
            f"{report.shard} on {node} has {len(report.gpus)} GPU and computes on the CPU{put}: "
            "look at its log for the reason"
        )
