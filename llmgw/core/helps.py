"""Which verb helps a model that is not as somebody wants it: one answer for the command line and for clients.

Answers for: the words after "what to try", by the state and its reason. May not look anywhere, nor say why.
"""

from __future__ import annotations

import re

SHOWN, ENDED = "`llmgw status` shows what there is", "`llmgw events` names those that ended"
#: A reason that names its verb already ends in it; of a drained place it names the place (`place.fit`).
_SAID = re.compile(r"llmgw (?:clear|confirm|resume|undrain) \S")
_DRAINED = re.compile(r"([^\s;:]+):? (?:\d+ of \d+ GPUs fit, )?(?:GPU (\d+) )?is drained since")
#: Of a program that is not there or that its machine cannot run, as the agent's launch has it.
PROGRAM = (
    r"(?:engine binary [^;]+? (?:is not on the PATH of|is a directory on|is not executable on|cannot be executed on"
    r"|not found on)|\w+ is not on the PATH of the agent on) (?P<node>[^\s;,:)]+)"
)
#: And of a file that a model would load, as `weights.absent` has it: the one fact, whatever is said before and after.
_ABSENT = re.compile(rf"model file [^;]+ does not exist on [^;\s)]+|{PROGRAM}")


def absent(why: str) -> str:
    """Which files and programs are not there, where that keeps the model from starting; "" where it does not."""
    return "; ".join(dict.fromkeys(said[0] for said in _ABSENT.finditer(why)))


def ready(name: str, state: str, why: str, *, confirm: str = "", paused: bool = False) -> str:
    """What brings it up; "" where `why` says so already.

    `state`: of the model in `llmgw status` or in a route table. `confirm`: the digest of what the guard holds back.
    """
    if _SAID.search(why):
        return ""
    if state == "failed":
        return f"`llmgw clear {name}` lets it start again"
    if state in ("waiting", "no_room"):
        return _in_the_way(name, why, confirm, paused=paused)
    if state == "unloaded" and absent(why):
        return f"put it there, then `llmgw clear {name}`"
    if state in ("unloaded", "asleep"):
        return f"`llmgw wake {name}` or a request starts it"
    return f"it goes on; `llmgw status {name}` shows how far it is"


def _in_the_way(name: str, why: str, confirm: str, *, paused: bool) -> str:
    if confirm:
        return f"`llmgw confirm {confirm}` lets what is held back happen"
    drained = _DRAINED.search(why)
    if drained:
        node, gpu = drained.groups()
        return f"`llmgw undrain {node}{f'/{gpu}' if gpu else ''}` gives it back"
    if paused:
        return "`llmgw resume` ends the pause, in which nothing makes room"
    return f"`llmgw status {name}` says what is in the way"


def stopped(name: str, states: frozenset[str], *, confirm: str = "", paused: bool = False) -> str:
    """What ends it. `states`: of its replicas that are there."""
    if states <= {"draining", "stopping"}:
        return f"it is on its way out; `llmgw status {name}` says what that waits for"
    if confirm:
        return f"`llmgw confirm {confirm}` lets what is held back happen, `llmgw stop {name}` ends it alone"
    if paused:
        return f"`llmgw resume` ends the pause, `llmgw stop {name}` ends it all the same"
    return f"`llmgw stop {name}` ends it"
