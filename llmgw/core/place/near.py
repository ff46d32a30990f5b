"""Which GPUs of one node are near each other: one NVLink island, else one NUMA node, else just in one box.

What a card does not say of itself makes it near to nobody. May not know what is free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from llmgw.core.types.messages import Gpu

#: How near the GPUs of a set are to each other, the nearest last.
APART, NUMA, NVLINK = 0, 1, 2
WORDS = {APART: "", NUMA: " on one NUMA node", NVLINK: " linked by NVLink"}


def islands(gpus: Iterable[Gpu], level: int) -> tuple[frozenset[str], ...]:
    """The sets of uuids that are that near to each other, in the order of their first card."""
    if level == APART:
        return (frozenset(g.uuid for g in gpus),)
    if level == NUMA:
        by_node: dict[int, list[str]] = {}
        for g in gpus:
            if g.numa is not None:
                by_node.setdefault(g.numa, []).append(g.uuid)
        return tuple(frozenset(there) for there in by_node.values())
    return tuple(_linked(gpus))


def widest(gpus: Collection[Gpu]) -> tuple[int, int]:
    """How many GPUs the largest NVLink island and the largest NUMA node have."""
    linked = [g for g in gpus if g.nvlink]
    numa = [g.numa for g in gpus if g.numa is not None]
    return (
        max(map(len, _linked(linked)), default=0) if linked else 0,
        max(map(numa.count, {*numa}), default=0),
    )


def level(count: int, nvlink: int, numa: int) -> int:
    """How near so many can be, where the largest sets are so large."""
    return NVLINK if nvlink >= count else NUMA if numa >= count else APART


def _linked(gpus: Iterable[Gpu]) -> Iterable[frozenset[str]]:
    """Cards that reach each other over NVLink, also by way of a third: each is told its peers."""
    peers = {g.uuid: {*g.nvlink} for g in gpus if g.nvlink}
    while peers:
        first = next(iter(peers))
        island, reach = {first}, [first]
        while reach:
            for peer in peers.pop(reach.pop(), ()):
                if peer in peers and peer not in island:
                    island.add(peer)
                    reach.append(peer)
        yield frozenset(island)
