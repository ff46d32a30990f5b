"""What control knows: facts folded in by `reconcile.observe`, never a decision about what was asked for.

Nothing here is derived: claims, replica states, holdings and routes are computed from these facts at every pass, so
there
is no release to forget and no cache to go stale (design.md 2). Times are monotonic seconds of the control process.
"""

from __future__ import annotations

from msgspec import Struct

from llmgw.core.types.catalog import Catalog
from llmgw.core.types.messages import (
    PROTOCOL_FLOOR,
    TERMINAL,
    Foreign,
    Gpu,
    NodeReport,
    Refusal,
    ShardReport,
    Start,
)
from llmgw.core.types.routes import Demand

#: Begins the key of what an agent reports without an incarnation (F55).
NAMELESS = "?"
#: How a shard came to be in the picture.
REPORTED, PLACED, REMEMBERED = "reported", "placed", "remembered"

#: A node is unreachable when its session has had no event for this long (contract/http.md).
SESSION_TTL_S = 15.0
#: A refused (node, resource) counts as foreign for this long, so the next pass does not ask the same again.
REFUSAL_HOLD_S = 60.0
#: With no node expected, settling ends when no further node has registered for this long (A47).
QUIET_S = 15.0


class Shard(Struct, frozen=True, kw_only=True, gc=False):
    """One shard on one node.

    `missing`: believed, not in the node's complete report, to be announced once and dropped.
    """

    node: str
    report: ShardReport
    origin: str = REPORTED
    #: it was this control process that had it started, so no gateway knew of it before
    ours: bool = False
    #: claimed by this control process before: its verdict is `keep`
    known: bool = False
    was_live: bool = False
    missing: bool = False
    #: of a placed one: (shard, incarnation) that are being stopped there, and have ended when it starts
    after: tuple[tuple[str, str], ...] = ()
    #: first seen, and first seen ready, by this control process
    seen_s: float = 0.0
    ready_s: float | None = None
    #: the state that we ordered it into and its agent has not told yet: `asleep`, or `loading` for a sleeper
    turned: str = ""
    #: when this control last saw it come up after a load; None for what was up when it was met
    loaded_s: float | None = None
    #: since when its agent has called it unhealthy without a break (F64)
    unhealthy_s: float | None = None

    @property
    def incarnation(self) -> str:
        """The key of the placement; an older agent that has none is grouped by replica id."""
        return self.report.incarnation or f"{NAMELESS}{self.report.model}/{self.report.replica}"

    @property
    def rank(self) -> int:
        return self.report.rank or 0

    @property
    def key(self) -> tuple[str, int]:
        return (self.incarnation, self.rank)

    @property
    def misplaced(self) -> bool:
        """It names another node than the one that reported it: refused (A12)."""
        return self.report.node not in (None, self.node)

    @property
    def believed(self) -> bool:
        """Whether its node's complete report should list it (A39, A40, A12).

        Placed but never reported is dropped, not counted as a failure; ended ones are over, refused ones never counted.
        """
        if self.origin == PLACED or self.misplaced:
            return False
        return self.missing or self.report.state not in TERMINAL

    def may_be(self, other: Shard) -> bool:
        """The same shard as far as anybody says: an older agent leaves the incarnation out (F55)."""
        named = self.report.incarnation and other.report.incarnation
        return self.key == other.key or (not named and self.report.shard == other.report.shard)

    @property
    def holds(self) -> bool:
        """Whether it holds resources: all that has not verifiably ended (A43, A44)."""
        return not self.missing and self.report.state not in TERMINAL


class Node(Struct, frozen=True, kw_only=True):
    """`report.shards` is empty here: `shards` is the one list.

    `settled`: its complete inventory came in under our epoch.
    """

    report: NodeReport
    shards: tuple[Shard, ...] = ()
    settled: bool = False
    connected: bool = False
    expected: bool = False
    unreachable_before: bool = False
    heard_s: float | None = None
    lost_s: float | None = None
    #: its last complete inventory: what happened on it before may have been told late
    registered_s: float = 0.0

    @property
    def too_old(self) -> bool:
        return self.report.protocol < PROTOCOL_FLOOR

    @property
    def usable(self) -> bool:
        """May be placed on: settled, heard, and able to understand us."""
        return self.settled and self.connected and not self.too_old


class Refused(Struct, frozen=True):
    node: str
    resource: str
    until_s: float
    why: str


class Draining(Struct, frozen=True):
    """`version`: the route table that shows the replica draining; 0 until one was published."""

    since_s: float
    reason: str
    why: str
    version: int = 0


class GatewayView(Struct, frozen=True):
    demand: Demand
    heard_s: float
    #: replica -> monotonic time of the last byte any client got from it
    last_byte_s: dict[str, float] = {}
    #: the same, of bytes of good answers alone: what an engine really did
    answered_s: dict[str, float] = {}


class Asked(Struct, frozen=True):
    """A model that requests wait for: since when without a break, and when a gateway last said so (A64)."""

    since_s: float
    last_s: float


class Failure(Struct, frozen=True):
    """One failed placement of a model, kept over restarts so that a loop ends visibly (A67)."""

    incarnation: str
    profile: str
    at_s: float
    error: str
    gave_up: bool = False
    #: of what failed: a roll is halted by a failure of the very profile it rolls to (A66)
    fingerprint: str = ""
    #: the node that refused it, for a file that it would load is not there: nothing ran, and once it is there it may
    absent: str = ""


class State(Struct, frozen=True, kw_only=True):
    catalog: Catalog = Catalog()
    epoch: int = 0
    leader_uuid: str = ""
    #: the epoch in the inventory file when this control started; and that an agent obeyed a higher one, of another
    #: leader: the file is a backup, and its nodes are not all there are (F16)
    epoch_before: int = 0
    outdated: bool = False
    nodes: dict[str, Node] = {}
    started_s: float = 0.0
    settle_timeout_s: float = 60.0
    #: when settling ended; None while it lasts
    settled_s: float | None = None
    last_registered_s: float | None = None
    #: since when this catalog counts: what it made unclaimed has its grace from here
    catalog_s: float = 0.0
    keep_unknown: bool = False
    #: per canonical on-demand model: since when it is wanted (A22, A23)
    wanted_s: dict[str, float] = {}
    #: per canonical model: since when requests wait for it, and when an operator last asked to have it up
    asked: dict[str, Asked] = {}
    woken_s: dict[str, float] = {}
    gateways: dict[str, GatewayView] = {}
    #: gateways that the control before counted and this one may not have heard yet; None: nobody can tell which
    unheard: frozenset[str] | None = None
    refused: tuple[Refused, ...] = ()
    draining: dict[str, Draining] = {}
    #: replicas that are to sleep once no request can reach them: routed no more, and nothing was ordered yet
    dozing: dict[str, Draining] = {}
    failures: dict[str, tuple[Failure, ...]] = {}
    #: by fingerprint: the most that a run of it ever held on one GPU (A62)
    learned: dict[str, int] = {}
    #: incarnations in the route table that gateways have now
    routed: frozenset[str] = frozenset()
    #: the operator asked for the engines to end (`llmgw down --engines`)
    ending: bool = False
    #: the operator's `llmgw pause`: since when and by whom, in words; "" for none
    paused: str = ""
    #: incarnations whose end the operator confirmed, so that the blast-radius guard counts them no more (A49)
    confirmed: frozenset[str] = frozenset()
    #: (node, GPU or "" for all of it) that an operator drained -> since when and by whom, in words
    cordoned: dict[tuple[str, str], str] = {}
    #: incarnations on nodes that have been silent for their model's `lost_after` (F61), as of the last tick
    lost: frozenset[str] = frozenset()
    #: the last tick at which no node at all was heard: then the fault is probably on this side (F63)
    deaf_s: float = 0.0
    #: why nothing at all is started or ended (`--require-plan` of another world, A56); "" for nothing
    withheld: str = ""

    @property
    def first_version(self) -> int:
        """The lowest version a route table of this epoch can have; versions rise over restarts of control."""
        return self.epoch * 1_000_000 + 1

    @property
    def settling(self) -> bool:
        return self.settled_s is None


class NodeRegistered(Struct, frozen=True, tag=True):
    """The complete inventory of one node: what it lacks does not run there (A39, A42)."""

    report: NodeReport


class ShardsChanged(Struct, frozen=True, tag=True):
    node: str
    shards: tuple[ShardReport, ...] = ()
    gone: tuple[tuple[str, str], ...] = ()
    gpus: tuple[Gpu, ...] | None = None
    foreign: tuple[Foreign, ...] | None = None
    refused: tuple[Refusal, ...] = ()
    gpus_error: str | None = None


class SessionLost(Struct, frozen=True, tag=True):
    node: str


class Placed(Struct, frozen=True, tag=True):
    """Control is about to ask `node` for this shard: it counts as held from here on (work in flight is held)."""

    node: str
    start: Start


class Demanded(Struct, frozen=True, tag=True):
    demand: Demand


class GatewayGone(Struct, frozen=True, tag=True):
    """The gateway's process was seen dead: its streams are over."""

    gateway: str


class CatalogLoaded(Struct, frozen=True, tag=True):
    catalog: Catalog


class DrainBegun(Struct, frozen=True, tag=True):
    incarnation: str
    reason: str
    why: str


class DozeBegun(Struct, frozen=True, tag=True):
    """Out of the routes, to be put to sleep; `why` "": it is wanted again, and stays."""

    incarnation: str
    why: str


class Turned(Struct, frozen=True, tag=True):
    """Control is about to order this shard to sleep (`asleep`) or to wake (`loading`): so it counts from here on."""

    node: str
    key: tuple[str, int]
    to: str


class Published(Struct, frozen=True, tag=True):
    """A route table went out: `routed` are its incarnations, `draining` those it shows as draining."""

    version: int
    routed: frozenset[str]
    draining: frozenset[str]


class Answered(Struct, frozen=True, tag=True):
    """What gateways told was answered: nothing rests by what they said (`Demand.resting`)."""


class Announced(Struct, frozen=True, tag=True):
    """The plan that named missing and ended shards is recorded: drop what it announced."""

    incarnations: frozenset[str]


class NodeForgotten(Struct, frozen=True, tag=True):
    node: str


class Cleared(Struct, frozen=True, tag=True):
    model: str


class Woken(Struct, frozen=True, tag=True):
    """`llmgw wake`: the model, by its canonical name, is wanted as if somebody had asked it just now.

    `over`: not any more, for an operator has stopped it since.
    """

    model: str
    over: bool = False


class Ending(Struct, frozen=True, tag=True):
    pass


class Paused(Struct, frozen=True, tag=True):
    """`why` "" resumes."""

    why: str


class Cordoned(Struct, frozen=True, tag=True):
    """Nothing of ours may be there until the operator says otherwise; `gpu` "": the whole node, `why` "": no more.

    `ended`: when that was, for what is said of those that leave all the same.
    """

    node: str
    gpu: str
    why: str
    ended: str = ""


class Confirmed(Struct, frozen=True, tag=True):
    """The operator has seen what the guard holds back and wants it (A49)."""

    incarnations: frozenset[str]


class Withheld(Struct, frozen=True, tag=True):
    """`why` "" lets decisions be carried out again."""

    why: str


class Tick(Struct, frozen=True, tag=True):
    pass


Event = (
    NodeRegistered
    | ShardsChanged
    | SessionLost
    | Placed
    | Demanded
    | GatewayGone
    | CatalogLoaded
    | DrainBegun
    | DozeBegun
    | Turned
    | Published
    | Announced
    | Answered
    | NodeForgotten
    | Cleared
    | Woken
    | Ending
    | Paused
    | Cordoned
    | Confirmed
    | Withheld
    | Tick
)
