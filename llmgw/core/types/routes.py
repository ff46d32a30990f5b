"""What control and gateways say to each other: the route table one way, demand the other (contract/http.md).

The table is immutable and whole, never a delta; `version` rises over restarts of control (epoch times a million plus a
counter), so "which table does that gateway use" is one comparison.
"""

from __future__ import annotations

from msgspec import Struct

#: A gateway silent for this long makes its replicas busy; after the second figure it is out of the count.
GATEWAY_SILENT_S = 10.0
GATEWAY_GONE_S = 60.0
#: A gateway that was not answered for so long asks nothing new of what may be put to sleep: from the second figure on
#: control does not wait for it. It counts from when it sent what was answered, control from when that came, which is
#: later; so all of the difference is to spare, for a connection that is still made and a process that is held up.
GATEWAY_WORD_S = 45.0
#: A gateway leaves alone what it said it would (`Demand.resting`) for so long at most where it gets no answer. Control
#: takes it up where it can tell that it was said less than the second figure ago, and what it orders then is obeyed by
#: the third at the latest (`StopShard.not_after`).
REST_S = 5.0
REST_TAKEN_S = 2.0
REST_OBEYED_S = 4.0


class RouteReplica(Struct, frozen=True, kw_only=True):
    """`state`: ready, or draining (finish what is there, send nothing new).

    `loopback`: whose it listens on, "" where everybody can reach it. `unheard`: it may sleep by now, by the order of
    another control, and its node has not said; a gateway that has it goes on with it, the others do not begin.
    `sleeps`: control may have it put to sleep, once no gateway that it counts has it any more (`GATEWAY_WORD_S`).
    """

    replica: str
    endpoint: str
    loopback: str = ""
    incarnation: str = ""
    profile: str = ""
    state: str = "ready"
    weight: int = 1
    api_key: str = ""
    upstream_model: str = ""
    unheard: bool = False
    sleeps: bool = False


class RouteModel(Struct, frozen=True, kw_only=True):
    """`status` is loaded, loading, unloaded or failed; `why` and `progress` word it for a waiting client."""

    aliases: tuple[str, ...] = ()
    kind: str = "chat"
    listed: bool = True
    context: int | None = None
    status: str = "unloaded"
    why: str = ""
    progress: float | None = None
    #: nothing that could be made to go would make room for it: whoever asks is refused at once, with this sentence
    no_room: str = ""
    wait_timeout_s: float = 300.0
    max_in_flight: int = 64
    queue: int = 128
    #: prompts that begin alike go to the same replica, by so many of their first bytes; None: by load alone
    sticky_prefix_bytes: int | None = None
    replicas: tuple[RouteReplica, ...] = ()


class RouteKey(Struct, frozen=True, kw_only=True):
    """A client's key: by its hash alone. `models` None: all; `rights`: what it may beyond the usual calls."""

    id: str
    sha256: str
    models: tuple[str, ...] | None = None
    limits: dict[str, float] = {}
    rights: tuple[str, ...] = ()


class RouteTable(Struct, frozen=True, kw_only=True):
    """`partial`: control is settling; a replica the gateway knows and this table lacks is kept (A50)."""

    version: int = 0
    partial: bool = False
    models: dict[str, RouteModel] = {}
    keys: tuple[RouteKey, ...] = ()
    #: URLs of the controls there are, the leader's first: a gateway asks them besides those it was started with
    controls: tuple[str, ...] = ()


class Demand(Struct, frozen=True, kw_only=True):
    """One gateway process's whole present state. `last_byte` is the age in seconds of the last byte sent, per replica.

    `answered`: likewise of the last byte of a good answer that the engine itself sent, in the middle of streams too.
    `waited`: for how long without a break requests have waited, per model, so that a control that starts knows it too.
    A lower `n` of the same `gateway` is old and ignored. `breaker`: the state of each that is not closed, per replica;
    `breaker_why`: what it failed with, for people. `ended`: its last words, it serves nobody from here on. `resting`:
    replicas that it sends nothing to before it uses the table of the answer, for control to choose from (`REST_S`);
    `heard`: `Heard.at` of the last answer it got.
    """

    gateway: str
    n: int
    table: int = 0
    in_flight: dict[str, int] = {}
    waiting: dict[str, int] = {}
    last_byte: dict[str, float] = {}
    breaker: dict[str, str] = {}
    breaker_why: dict[str, str] = {}
    answered: dict[str, float] = {}
    waited: dict[str, float] = {}
    ended: bool = False
    resting: tuple[str, ...] = ()
    heard: str = ""


class Heard(Struct, frozen=True, kw_only=True):
    """What a control answers to `Demand`. `version`: of its table then; `leader`: it knows of nobody who leads instead.

    From here on the one that leads puts nothing to sleep before this gateway has said that it has the table without it.
    That is who is `acting`; another one puts nothing to sleep, and cannot tell whether somebody else does. `at`: when
    this was said, by a clock that is its own affair: it comes back with the next demand, which is no older.
    """

    version: int = 0
    leader: bool = True
    acting: bool = True
    at: str = ""
