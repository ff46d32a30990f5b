"""`llmgw status -o json`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from scripts.documents.base import Bytes, Digest, Document, Part, Time, Watts


def _says(text: str) -> Meta:
    return Meta(description=text)


class Standby(Part, frozen=True, kw_only=True):
    name: str
    url: str | None
    version: str
    lag_s: Annotated[float, _says("Since it was heard.")]
    missing: Annotated[list[str], _says("Nodes of the leader that it does not hear.")]
    same_catalog: bool


class Leader(Part, frozen=True, kw_only=True):
    name: str
    epoch: int
    lease: str
    standbys: list[Standby]
    url: str | None
    answered_by: Annotated[str, _says("The control that this answer is from.")]
    leading: Annotated[bool, _says("Whether it is the one that leads.")]


class Settling(Part, frozen=True, kw_only=True):
    since: Time
    waiting_for: list[str]


class CatalogInUse(Part, frozen=True, kw_only=True):
    path: str
    version: str
    error: Annotated[str | None, _says("Why the file on disk is not the one in use.")]


class Gpu(Part, frozen=True, kw_only=True):
    uuid: str
    index: int
    name: str
    memory: Bytes
    reserved: Annotated[Bytes | None, _says("What engines were given; null where control is away.")]
    used: Bytes
    foreign: Annotated[Bytes | None, _says("Used by what is not ours.")]
    healthy: bool | None = None
    lost: bool | None = None
    trouble: str | None = None
    unified: bool | None = None
    drained: Annotated[str | None, _says("Since when and by whom, in words.")] = None
    engines: int | None = None
    driver: str | None = None
    link: Annotated[str | None, _says("PCIe generation and width now, and at most.")] = None
    power_w: Watts | None = None
    power_limit_w: Watts | None = None


class Foreign(Part, frozen=True, kw_only=True):
    pid: int
    gpu: str | None
    memory: Bytes
    command: str
    port: int
    shard: Annotated[str | None, _says("One of ours that holds more than it was given.")]


class Answer(Part, frozen=True, kw_only=True):
    """What one node says to one more replica by this profile."""

    node: str
    profile: str
    takes: Literal["yes", "soon", "no"]
    why: str


class Node(Part, frozen=True, kw_only=True):
    node: str
    state: Literal["ready", "read-only", "draining", "drained", "expected", "unreachable"]
    since: Time | None
    version: str | None
    address: str | None = None
    drained: str | None = None
    gpus: list[Gpu]
    power_w: Watts | None
    power_reserved_w: Watts | None = None
    power_budget_w: Watts | None
    foreign: list[Foreign] | None = None
    engines: int


class Model(Part, frozen=True, kw_only=True):
    name: str
    aliases: list[str]
    state: Literal["loaded", "loading", "unloaded", "asleep", "waiting", "failed"]
    min: int
    max: int
    ready: int
    waiting: int
    idle_until: Time | None
    why: str | None
    places: Annotated[list[Answer] | None, _says("Of each node, the tightest resource.")] = None


class Compute(Part, frozen=True, kw_only=True):
    device: str | None = None
    layers_gpu: int | None = None
    layers_total: int | None = None
    gpu_bytes: Bytes | None = None


class Asleep(Part, frozen=True, kw_only=True):
    level: int
    since: Time
    freed: Bytes | None = None


class Shard(Part, frozen=True, kw_only=True):
    shard: str
    node: str
    gpus: list[str]
    port: int
    pid: int | None
    state: str
    attempt: int | None = None
    progress: float | None
    compute: Compute | None
    gpu_peak: Annotated[Bytes | None, _says("The most seen on one GPU.")] = None
    host_peak: Annotated[Bytes | None, _says("The most seen of the host's memory.")] = None
    error: str | None
    asleep: Asleep | None = None


class Replica(Part, frozen=True, kw_only=True):
    replica: str
    incarnation: str
    model: str
    profile: str
    state: str
    have: int
    want: int
    endpoint: str | None
    in_flight: int | None
    since: Time | None
    adopted_at: Time | None
    drift: str | None
    breaker: Literal["closed", "half-open", "open"] | None
    breaker_why: str | None = None
    shards: list[Shard]


class Stop(Part, frozen=True, kw_only=True):
    shard: str
    node: str
    reason: str
    why: str
    at: Annotated[Time | None, _says("null: it comes once it is let.")]
    withheld: str | None
    waits: Annotated[str | None, _says("What a drain waits for.")] = None


class Status(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.status/1"

    generated_at: Time | None = None
    started_at: Annotated[Time | None, _says("When this control began to lead, or to look.")] = None
    leader: Leader | None
    settling: Settling | None
    blocked: str | None
    confirm: Digest | None
    paused: str | None
    catalog: CatalogInUse | None
    nodes: list[Node]
    models: list[Model]
    replicas: list[Replica]
    stops_pending: list[Stop]
    warnings: list[str]


DOCUMENTS = (Status,)
