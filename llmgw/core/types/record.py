"""One shard on one node, as its agent keeps it: the order it came with, what became of it, what it knows just now.

All of it but `watch` is the journal's. Times are seconds of one monotonic clock per boot.
"""

from __future__ import annotations

from math import inf
from typing import Any, Literal

from msgspec import Struct

from llmgw.core.types.messages import TERMINAL, Compute, Start
from llmgw.core.types.sleep import Nap

#: (shard, incarnation)
Key = tuple[str, str]
#: What follows once the tree of a tear-down is gone and its memory is back; "": no tear-down is under way.
Ending = Literal["", "restart", "failed", "stopped"]
#: In the error of a shard whose processes or memory do not go away: only a person can free what it holds (A43, F67).
STUCK = "stuck: "
#: The error of a shard that went down with its host, which says nothing of the shard (F39).
REBOOTED = "the host was rebooted"


class Watch(Struct, frozen=True, kw_only=True):
    """What is known of a record only while this agent process lives: never journaled, rebuilt after a restart."""

    #: re-attach has said what became of it (A13: the agent registers when all are)
    identified: bool = False
    #: its process is proved ours; nothing is signalled without this
    verified: bool = False
    #: the leader is seen gone; `gone`: its whole tree; `free`: its GPU memory is back, or it had none
    exited: bool = False
    gone: bool = False
    free: bool = False
    gone_s: float = 0.0
    #: taken up again after an agent's restart: it may have been up, and serving, when nobody looked (F46)
    found: bool = False
    #: starting: give up at; tear-down: the next harder step at
    due_s: float = 0.0
    #: this attempt's start, or when it was taken up again
    began_s: float = 0.0
    #: when to probe next (`probing`: one is under way), and to look at tree, memory or identity next
    probe_s: float = 0.0
    probing: bool = False
    look_s: float = 0.0
    #: the probe under way asks for a token; when the next one is to
    token: bool = False
    token_s: float = 0.0
    #: a leader that waits for its workers (`start_order`): they listen; ask again at, one is under way, give up at
    met: bool = False
    knock_s: float = 0.0
    knocking: bool = False
    #: its sleep doors: when to call next, a call is under way, they were asked in this process's life
    door_s: float = 0.0
    calling: bool = False
    asked: bool = False
    give_up_s: float = 0.0
    #: results of the last `ready.of` probes, newest last
    probes: tuple[bool, ...] = ()
    #: the listener on its port was seen to be ours
    owned: bool = False
    last_probe: str = ""
    progress: float | None = None
    #: every pid of the tree that was seen; `left`: what was there at the last look, doubtful ones too
    tree: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    #: when KILL was first sent; inf: not in this process's life
    kill_s: float = inf
    #: GPU memory in use when last measured, and how often in a row it has not fallen since
    used_bytes: int | None = None
    steady: int = 0
    #: the most that its engine was seen to hold on one GPU
    peak_bytes: int | None = None
    #: and of the host's memory, all its processes together
    host_peak_bytes: int | None = None
    #: the last transitions, for the exception that an impossible one raises
    story: tuple[str, ...] = ()


class Record(Struct, frozen=True, kw_only=True):
    """One shard on this node: the order it came with and what became of it. All but `watch` is the journal's."""

    start: Start
    state: str = "pending"
    #: running, draining or stopped; never goes back
    desired: str = "running"
    attempt: int = 1
    #: a spawn of this attempt is journaled and not yet answered (F43, F44)
    intent: bool = False
    pid: int | None = None
    start_ticks: int = 0
    boot_id: str = ""
    #: first spawn of the incarnation, ISO (A25: a restart does not make it young)
    started_at: str = ""
    endpoint: str = ""
    artefact: str = ""
    api_key: str = ""
    ending: Ending = ""
    #: "" | "stop" | "kill": what the tree was sent; journaled before it is sent, so there is at most one TERM
    signalled: str = ""
    grace_s: float | None = None
    #: an operator's word that what cannot be ended holds nothing any more (A43); see `released`
    force: bool = False
    #: when attempts failed, within the restart window
    failures: tuple[float, ...] = ()
    #: how many attempts ended before they were up, for what no repeat mends (`Exited.lasting`)
    lasting: int = 0
    gave_up: bool = False
    error: str | None = None
    exit_code: int | None = None
    #: the agent died between its intent and its exec (F44)
    never_ran: bool = False
    compute: Compute | None = None
    #: what it still uses while it sleeps, on the GPU where that is most, and what came back from all of them
    nap: Nap = ""
    rest_bytes: int | None = None
    freed_bytes: int | None = None
    #: rebuilt from an older agent's markers, or unreadable: what it was started with is not known, it is not restarted
    partial: bool = False
    #: its process was started by a person and taken over (A71): its session and its output are not ours, and its tree
    #: is what descends from it
    by_hand: bool = False
    extra: dict[str, Any] = {}
    watch: Watch = Watch()

    @property
    def key(self) -> Key:
        return (self.start.shard, self.start.incarnation)

    @property
    def ended(self) -> bool:
        """Verified over: holds nothing."""
        return self.state in TERMINAL

    @property
    def released(self) -> bool:
        """Ended by an operator's word: what may be left of it is a stranger from then on (A43, A70)."""
        return self.ended and self.force

    @property
    def unreadable(self) -> bool:
        """Nothing is known of it but its name: neither its GPUs nor its port."""
        return self.partial and not self.start.model

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(p for p in (self.start.port, *self.start.ports.values()) if p)
