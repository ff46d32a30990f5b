"""What one pass decides: one verdict per shard, one row per replica, an ordered list of actions; each with `why`.

A `Plan` is what the loop applies and what the dry run prints: the performer differs, never the decider. Words of
`verdict`, `reason` and `action` are closed lists of contract/cli.md.
"""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from llmgw.core.types.state import Shard

VERDICTS = (
    "adopt",
    "join",
    "keep",
    "replace",
    "stray",
    "unclaimed",
    "conflict",
    "forget",
    "terminal",
    "hold",
)
#: verdicts that are a difference: `adopt --dry-run` exits 1
DIFFERENCES = frozenset({"replace", "stray", "unclaimed", "conflict", "forget"})
#: verdicts that change nothing and are left out of the digest
QUIET = frozenset({"adopt", "join", "keep", "hold", "terminal"})


class Verdict(Struct, frozen=True, kw_only=True, gc=False):
    shard: Shard
    verdict: str
    why: str
    reason: str | None = None
    #: canonical model and profile it is claimed under; as reported where nothing claims it
    model: str = ""
    profile: str = ""


class Replica(Struct, frozen=True, kw_only=True, gc=False):
    """All shards of one incarnation. `members` are those that count, by rank; `held` says some are on a silent node."""

    replica: str
    incarnation: str
    model: str
    profile: str
    have: int
    want: int
    state: str
    endpoint: str = ""
    members: tuple[Shard, ...] = ()
    claimed: bool = True
    #: what the catalog says of it in words, and in the closed list why nothing will ever claim it
    claim: str = ""
    reason: str | None = None
    #: claimed and counted towards the model; False for strays, conflicts and what is unclaimed
    kept: bool = True
    held: bool = False
    #: the incarnation it lost to, "" for none
    rival: str = ""
    drift: str = ""
    started_at: str = ""
    in_flight: int = 0

    @property
    def going(self) -> bool:
        """On its way out: nothing counts on it any more."""
        return self.state in ("draining", "failed")

    @property
    def complete_and_ready(self) -> bool:
        return self.state == "ready"


class Judged(Protocol):
    """What a survey and the plan made of it have in common: every verdict, every replica."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]: ...

    @property
    def replicas(self) -> tuple[Replica, ...]: ...


class Spot(Struct, frozen=True, kw_only=True):
    """Where one rank goes."""

    node: str
    rank: int = 0
    gpus: tuple[str, ...] = ()
    port: int = 0
    #: of the leader of a group: where its ranks meet
    group_port: int = 0
    fabric: str = ""
    hcas: tuple[str, ...] = ()


class StartReplica(Struct, frozen=True, kw_only=True, tag=True):
    """`withheld`, here and below: why it is listed and not carried out for now, "" for nothing (`reconcile.guard`)."""

    model: str
    profile: str
    spots: tuple[Spot, ...]
    why: str
    withheld: str = ""
    #: (shard, incarnation) that are being stopped: its agent starts it once they have ended
    after: tuple[tuple[str, str], ...] = ()


class StopReplica(Struct, frozen=True, kw_only=True, tag=True):
    """Stop these shards, `due_s` seconds from now (0: now). Names an incarnation and a reason: absence is no order."""

    replica: str
    incarnation: str
    model: str
    profile: str
    shards: tuple[Shard, ...]
    reason: str
    why: str
    due_s: float = 0.0
    disturbs: bool = False
    #: the end of a drain that was announced and applied before
    drained: bool = False
    withheld: str = ""


class DrainReplica(Struct, frozen=True, kw_only=True, tag=True):
    replica: str
    incarnation: str
    model: str
    profile: str
    shards: tuple[Shard, ...]
    reason: str
    why: str
    disturbs: bool = True
    #: an idle on-demand replica going to sleep: not listed in a dry run, disturbs nobody
    idle: bool = False
    #: False: these shards only, the others of the incarnation stay and go on being routed
    whole: bool = True
    withheld: str = ""


class RollReplica(Struct, frozen=True, kw_only=True, tag=True):
    """Replace a replica whose profile changed: `spots` for a surge, () to stop it first for want of room (A66)."""

    replica: str
    incarnation: str
    model: str
    profile: str
    shards: tuple[Shard, ...]
    spots: tuple[Spot, ...]
    why: str
    withheld: str = ""


class NapReplica(Struct, frozen=True, kw_only=True, tag=True):
    """An idle replica on its way to sleep, or a sleeper that is woken.

    `doze`: out of the routes; `stay`: into them again; `sleep`: it is ordered. These are not listed in a dry run, as
    idle drains are not.
    """

    replica: str
    incarnation: str
    model: str
    profile: str
    shards: tuple[Shard, ...]
    step: Literal["doze", "stay", "sleep", "wake"]
    why: str
    withheld: str = ""


class Wait(Struct, frozen=True, kw_only=True, tag=True):
    """Wanted, cannot be yet: `why` names the tightest resource. Disturbs nobody.

    `rolls`: incarnations that are rolled as soon as other starts are over (A49 counts them).
    `first`: replicas that go before it, `spots` where it goes then; `hopeless`: nothing that could go would do (A64).
    """

    model: str
    profile: str
    why: str
    rolls: frozenset[str] = frozenset()
    first: tuple[str, ...] = ()
    spots: tuple[Spot, ...] = ()
    hopeless: bool = False


Action = StartReplica | StopReplica | DrainReplica | RollReplica | NapReplica | Wait


class Blocked(Struct, frozen=True, kw_only=True):
    """What the blast-radius guard holds back until the operator confirms it (A49).

    `incarnations`: those of the actions, and further ones that the same rolls would reach; `why` has the numbers.
    """

    incarnations: frozenset[str]
    why: str


class NodeView(Struct, frozen=True, kw_only=True):
    node: str
    answered: bool
    shards: int
    error: str | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """Verdicts sorted by node, replica, rank; replicas by name; actions in the order they would be applied."""

    nodes: tuple[NodeView, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    replicas: tuple[Replica, ...] = ()
    actions: tuple[Action, ...] = ()
    settling_for: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    epoch_seen: int = 0
    blocked: Blocked | None = None

    @property
    def complete(self) -> bool:
        return all(n.answered for n in self.nodes)
