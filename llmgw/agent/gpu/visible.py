"""How an engine is told its GPUs, by the environment of its vendor's runtime.

CUDA: uuids, MIG devices by theirs (docs.nvidia.com, MIG user guide). ROCm: ROCR_VISIBLE_DEVICES takes ids and numbers,
HIP_VISIBLE_DEVICES is documented for numbers only, among those that the first one shows (ROCm "GPU isolation").
Level Zero: ZE_AFFINITY_MASK takes numbers, in the order of the PCI bus when asked to. May not choose a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmgw.core.types.messages import Gpu


def environment(uuids: Sequence[str], known: Iterable[Gpu]) -> dict[str, str]:
    """`known`: what is read of this node's GPUs; one that is not among them is told by its uuid."""
    there = {g.uuid: g for g in known}
    mine = [there.get(uuid, Gpu(uuid=uuid)) for uuid in uuids]
    names = ",".join(uuids)
    env = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": names,
        "HIP_VISIBLE_DEVICES": names,
        "LLMGW_GPUS": names,
    }
    amd = [g for g in mine if g.vendor == "amd"]
    if amd:
        env["ROCR_VISIBLE_DEVICES"] = ",".join(g.selector or g.uuid for g in amd)
        # Both alike: vLLM ends where they differ, or are no numbers (vllm/platforms/rocm.py).
        numbers = ",".join(map(str, range(len(amd))))
        env |= {"HIP_VISIBLE_DEVICES": numbers, "CUDA_VISIBLE_DEVICES": numbers}
    intel = [g.selector for g in mine if g.vendor == "intel"]
    if intel:
        env |= {"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1", "ZE_AFFINITY_MASK": ",".join(intel)}
    return env
