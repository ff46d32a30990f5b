"""What is known of a model beside what was decided about it, for whoever looks at it or asks for it.

Worked out when somebody reads it: a pass over a thousand nodes must not pay for words. Decides nothing.
"""

from __future__ import annotations

from llmgw.core import failed
from llmgw.core.capacity import holdings
from llmgw.core.place import Fleet, NoRoom, find
from llmgw.core.types.catalog import Model
from llmgw.core.types.state import State


def nor_room(state: State, model: Model, now: float) -> str:
    """Of a model that backs off: why it would find no place now either, "" where it would, or does not back off.

    Else who waited the back-off out saw the other reason only then.
    """
    if not failed.backing_off(state, model, now):
        return ""
    answer = find(Fleet(state, holdings(state)), model)
    if not isinstance(answer, NoRoom) or answer.soon:
        return ""
    return f"nor would it find a place now: {answer.why}"


def before(state: State, model: Model, now: float) -> str:
    """What became of it when it was tried last, while that counts; "" for a model that is as good as new."""
    some = (failed.last(state, model, now), *failed.absent(state, model, now))
    last = max((f for f in some if f is not None), key=lambda f: f.at_s, default=None)
    return f"{now - last.at_s:.0f} s ago: {last.error}" if last is not None else ""
