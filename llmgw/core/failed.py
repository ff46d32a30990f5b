"""When a model that keeps failing is tried again, and when it is given up (A67).

The first failure restarts at once, back-off is from the second; `restart.max` failures within `restart.window` end in a
visible give-up that only `llmgw clear` or a changed profile ends. Counts placements, each of which the agent restarted
in place before; may not start anything.
"""

from __future__ import annotations

import re
from math import inf

from llmgw.core.helps import PROGRAM
from llmgw.core.types.catalog import Model, Restart
from llmgw.core.types.record import REBOOTED
from llmgw.core.types.state import Failure, State

BACKOFF_CAP_S = 300.0
#: With what to set instead.
_PROGRAM = re.compile(rf"{PROGRAM}.*")
#: What hosts tell within so long went down at one time: a power cut takes all of them. Rarely enough to give a model up
#: that brings its host down with each start.
REBOOT_S = 300.0


def gave_up(state: State, model: Model) -> str:
    """Why no new start of the model is tried until somebody clears it, or "". It does not lapse by itself."""
    counted = _ran(state, model)
    if not counted:
        return ""
    # Any of them, not only the last: a failure of a second replica does not undo the first one's end.
    ended = next((f.error for f in counted if f.gave_up), "")
    if ended:
        return ended
    last = counted[-1]
    restart = _restart(model, last)
    count = sum(last.at_s - f.at_s < restart.window_s for f in counted)
    if count < restart.max:
        return ""
    return f"gave up after {count} failures in {restart.window_s / 60:g} min: {last.error}"


def backing_off(state: State, model: Model, now: float) -> str:
    """Why the next start waits a little, or ""."""
    counted = _ran(state, model)
    if not counted:
        return ""
    last = counted[-1]
    restart = _restart(model, last)
    recent = sum(now - f.at_s < restart.window_s for f in counted)
    if recent == 1 or not recent:
        return ""
    pause_s = min(restart.backoff_s * 2.0 ** (recent - 2), BACKOFF_CAP_S)
    left_s = last.at_s + pause_s - now
    return f"backing off {left_s:.0f} s after {recent} failures: {last.error}" if left_s > 0 else ""


def last(state: State, model: Model, now: float) -> Failure | None:
    """The last failure that still counts; None for a model that is as good as new, to which others make room.

    One reboot of its host is none (F39): else after a power cut what always runs would wait for its whole window behind
    what somebody asked for once. Two of them are.
    """
    ran = [f for f in _ran(state, model) if not _lapsed(model, f, now)]
    if not ran or (len(ran) == 1 and ran[0].error == REBOOTED):
        return None
    return ran[-1]


def no_program(error: str) -> bool:
    """Whether that is what an agent says of a program that its node lacks: nothing ran. An engine's words are not."""
    return _PROGRAM.match(error) is not None


def absent(state: State, model: Model, now: float) -> tuple[Failure, ...]:
    """Where a file that it would load, or its program, was not there, the one found out last at the end."""
    return tuple(f for f in _counted(state, model) if f.absent and not _lapsed(model, f, now))


def lacks(state: State, model: Model, now: float) -> tuple[tuple[str, str, str], ...]:
    """Node, fingerprint and the sentence: what a start of it would not find there, its file or its program.

    Not of what has come up there since.
    """
    found = [(f.absent, f.fingerprint, f.error) for f in absent(state, model, now)]
    for f in _counted(state, model):
        said = None if f.absent else _PROGRAM.search(f.error)
        if said and (f.gave_up or not _lapsed(model, f, now)):
            found.append((said["node"], f.fingerprint, said[0]))
    return tuple(x for x in found if not _was_up(state, *x[:2]))


def _was_up(state: State, node: str, fingerprint: str) -> bool:
    shards = state.nodes[node].shards if node in state.nodes else ()
    return any(s.was_live and s.holds and s.report.fingerprint == fingerprint for s in shards)


def _lapsed(model: Model, failure: Failure, now: float) -> bool:
    return now - failure.at_s >= _restart(model, failure).window_s


def _counted(state: State, model: Model) -> tuple[Failure, ...]:
    """Failures of today's profiles: an edited one starts with a clean slate; an unknown fingerprint counts."""
    failures = state.failures.get(model.name)
    if not failures:
        return ()
    today = {f for p in model.profiles for f in p.fingerprints.values()}
    return tuple(f for f in failures if not f.fingerprint or f.fingerprint in today)


def _ran(state: State, model: Model) -> tuple[Failure, ...]:
    """One reboot is one failure, however many replicas were there: else five of them give their model up (F39)."""
    found: list[Failure] = []
    rebooted_s = -inf
    for failure in _counted(state, model):
        if failure.error == REBOOTED and not failure.gave_up:
            if failure.at_s - rebooted_s < REBOOT_S:
                continue
            rebooted_s = failure.at_s
        if not failure.absent:
            found.append(failure)
    return tuple(found)


def _restart(model: Model, failure: Failure) -> Restart:
    return (model.profile(failure.profile) or model.profiles[0]).restart
