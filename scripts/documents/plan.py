"""`llmgw adopt --dry-run -o json`, `adopt`, `adopt NODE:PID` and `wake`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from scripts.documents.base import Bytes, Digest, Document, Part, Time

Verdict = Literal[
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
]
Reason = Literal[
    "model_removed", "profile_removed", "artefact_mismatch", "stale_incarnation", "duplicate_replica", "duplicate_rank",
    "short_after_window", "not_running", "drift", "gpu_conflict", "port_conflict", "fabric_conflict", "wrong_node",
    "node_silent", "protocol_too_old", "settling",
]  # fmt: skip


class Node(Part, frozen=True, kw_only=True):
    node: str
    answered: bool
    shards: int
    error: str | None


class Then(Part, frozen=True, kw_only=True):
    """What ends a shard that goes on for now, `roll` also where others of its model are rolled before it."""

    action: Literal["stop", "drain", "roll"]
    why: str
    withheld: str | None


class Shard(Part, frozen=True, kw_only=True):
    shard: str
    replica: str
    incarnation: str
    rank: int
    node: str
    model: str | None
    profile: str | None
    gpus: list[str]
    port: int
    pid: int | None
    state: str
    verdict: Verdict
    reason: Reason | None
    why: str
    then: Then | None


class Replica(Part, frozen=True, kw_only=True):
    replica: str
    incarnation: str
    model: str
    profile: str
    have: int
    want: int
    state: str
    endpoint: str | None


class Action(Part, frozen=True, kw_only=True):
    action: Literal["start", "stop", "drain", "forget", "roll", "wake", "wait"]
    replica: str | None
    model: str | None
    profile: str | None
    node: str | None
    gpus: list[str]
    why: str
    due_s: float
    disturbs: bool
    withheld: str | None
    incarnation: str | None = None


class Gpu(Part, frozen=True, kw_only=True):
    node: str
    uuid: str
    index: int
    name: str


class Differs(Part, frozen=True, kw_only=True):
    what: str
    wanted: str
    runs: str


class Foreign(Part, frozen=True, kw_only=True):
    node: str
    pid: int
    gpu: str
    memory: Bytes
    command: str
    port: int
    engine: int | None
    matches: str | None
    nearest: str | None
    differs: list[Differs]
    adopt: Annotated[str | None, Meta(description="The line that takes it over.")]
    in_the_way: Annotated[str | None, Meta(description="Why it matches and is not taken over.")] = (
        None
    )


class Blocked(Part, frozen=True, kw_only=True):
    digest: Digest
    why: str
    engines: list[str]


class Plan(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.plan/1"

    generated_at: Time
    source: Literal["control", "agents", "file"]
    complete: bool
    digest: Digest
    epoch_seen: int
    nodes: list[Node]
    shards: list[Shard]
    replicas: list[Replica]
    actions: list[Action]
    gpus: list[Gpu]
    foreign: list[Foreign]
    summary: dict[str, int]
    disturbs: int
    blocked: Blocked | None
    warnings: list[str]
    problems: list[str]
    exit_code: int
    changes: list[str] | None = None


class Card(Part, frozen=True, kw_only=True):
    uuid: str
    index: int | None


class Place(Part, frozen=True, kw_only=True):
    node: str
    rank: int
    gpus: list[Card]
    port: int


class Evicted(Part, frozen=True, kw_only=True):
    replica: str
    model: str
    when: Literal["now", "ends", "later"]
    why: str


class Wake(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.wake/1"

    model: str
    dry_run: bool
    state: Literal["ready", "loading", "starts", "waits", "failed", "no_room", "settling"]
    why: str
    profile: str | None
    places: list[Place]
    evicts: list[Evicted]
    warning: str | None = None


class Fact(Part, frozen=True, kw_only=True):
    what: str
    wanted: str
    runs: str
    same: bool


class Takeover(Document, frozen=True, kw_only=True):
    """`adopt NODE:PID --as MODEL/PROFILE`."""

    SCHEMA: ClassVar[str] = "llmgw.takeover/1"

    node: str
    pid: int
    command: str
    port: int
    gpus: list[str]
    memory: Bytes
    model: str
    profile: str
    facts: list[Fact]
    taken: bool
    already: bool
    shard: str | None
    incarnation: str | None
    state: str | None
    endpoint: str | None
    why: str | None
    hint: str | None
    exit_code: int


DOCUMENTS = (Plan, Wake, Takeover)
