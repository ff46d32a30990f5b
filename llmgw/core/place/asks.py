"""What a profile asks for, to compare: who asks for the same is answered alike, who asks for more no better.

Knows the profile only, no node.
"""

from __future__ import annotations

from msgspec import Struct

from llmgw.core.types.catalog import Profile
from llmgw.core.types.messages import Resources

#: What makes nodes eligible at all, whatever runs there.
Where = tuple[object, ...]


def where(profile: Profile) -> Where:
    names = tuple(sorted([n for n, w in profile.weights.items() if w]))
    exact = (profile.gpus_exact, profile.gpus) if profile.gpus_exact else ()
    select = tuple(sorted(profile.select.items())) if profile.select else ()
    return (profile.pool, select, profile.fabric, names, exact)


class Asks(Struct, frozen=True, gc=False):
    where: Where
    kind: tuple[bool, int]
    sizes: tuple[float, ...]

    def covers(self, other: Asks) -> bool:
        """Whether the other asks for at least as much of everything, in the same places."""
        return (
            self.where == other.where
            and self.kind == other.kind
            and all(mine <= theirs for mine, theirs in zip(self.sizes, other.sizes, strict=True))
        )


def asks(profile: Profile, need: Resources) -> Asks:
    whole = not need.gpu_memory_bytes
    sizes = (
        profile.gpus,
        need.gpu_memory_bytes or 0,
        need.host_memory_bytes,
        need.cpu_cores,
        need.power_w,
    )
    return Asks(where(profile), (whole, profile.nodes), sizes)
