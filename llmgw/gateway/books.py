"""What is written down of a request once it has ended: counters, and its line in the log.

Answers for: all of that behind the answer's last byte, not before it: the loop sends at its end what was written in a
round, so whatever is done in the same round delays the client. It may not decide.
"""

from __future__ import annotations

import msgspec

from llmgw.gateway.answer import Answer
from llmgw.gateway.http1 import Request
from llmgw.gateway.meter import Access, Meter


class Ended(msgspec.Struct, gc=False):
    """`tail`: the last bytes of a good answer; `wait_s`: None where it did not wait; `gap_s`: between pieces, a mean.

    Names of model, replica and key are empty where there was none.
    """

    request: Request
    answer: Answer
    model: str
    replica: str
    key: str
    seconds: float
    first_s: float
    end: str
    why: str
    tail: bytes
    wait_s: float | None
    waited_s: float
    gap_s: float | None


def write_down(all_ended: list[Ended], meter: Meter, access: Access | None) -> None:
    for e in all_ended:
        out = e.answer
        of = meter.request(e.model, out.status, e.seconds, e.first_s, out.sent)
        if e.wait_s is not None:
            of.wait.add(e.wait_s)
        if e.gap_s is not None:
            of.gap.add(e.gap_s)
        if e.tail:
            meter.said(e.model, e.tail)
        if access is not None:
            access.request(
                e.request,
                out,
                model=e.model,
                replica=e.replica,
                key=e.key,
                seconds=e.seconds,
                first_s=e.first_s,
                waited_s=e.waited_s,
                end=e.end,
                why=e.why,
            )
