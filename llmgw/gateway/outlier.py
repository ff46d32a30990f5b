"""Which replicas are much slower to their first byte than their siblings, and get less for it.

Answers for: the rule. It may not choose; the clock is passed in.

The rule: of each replica the times to the first byte of its last answers are kept (`WINDOW`, none older than
`WINDOW_S`): of streams, and of calls that cannot stream; how long a whole answer takes says how much was asked. Its
siblings are the others of its profile: another profile may well be slower, which is what weights are for. It is slow
where its median is more than `SLOWER` times that of its siblings' medians, and `FLOOR_S` more, over `LEAST` answers
each; and it is so until its median is less than `FASTER` times theirs, or half of `FLOOR_S` more. Between the two it
stays what it is, so nothing flaps. Of the turns that could go to a slow one it gets one in `SHARE`, while it is no
busier than the others, which also shows when it is well again; all of them while the others are full. It does not
count where prompts choose the replica (`sticky_prefix_bytes`): the slow one may just have the long ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.gateway.endpoint import WINDOW, Endpoint

WINDOW_S = 60.0
LEAST = WINDOW // 2
SLOWER, FASTER, FLOOR_S = 3.0, 2.0, 0.25
SHARE = 8


def judge(endpoints: Iterable[Endpoint], now: float) -> bool:
    """Marks those that are slow; whether any is."""
    profiles: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        profiles.setdefault(endpoint.profile, []).append(endpoint)
    for siblings in profiles.values():
        medians = {e: m for e in siblings if (m := _median(e, now)) is not None}
        for endpoint in siblings:
            others = [m for e, m in medians.items() if e is not endpoint]
            if len(siblings) == 1:
                endpoint.slow = False
            elif endpoint in medians and others:
                endpoint.slow = _slow(medians[endpoint], median(others), before=endpoint.slow)
    return any(e.slow for siblings in profiles.values() for e in siblings)


def median(values: list[float]) -> float:
    """That of `statistics`, without what that module loads: a gateway is to be small (P11)."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _median(endpoint: Endpoint, now: float) -> float | None:
    fresh = [seconds for at, seconds in endpoint.firsts if now - at <= WINDOW_S]
    return median(fresh) if len(fresh) >= LEAST else None


def _slow(own: float, others: float, *, before: bool) -> bool:
    if before:
        return own >= FASTER * others and own >= others + FLOOR_S / 2
    return own > SLOWER * others and own > others + FLOOR_S
