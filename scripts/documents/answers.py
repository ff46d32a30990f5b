"""What the API answers where the command line has no document of its own: words of operators, and who leads."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from scripts.documents.base import Digest, Part, Time
from scripts.documents.others import Catalog, Known, NodeToken
from scripts.documents.status import Leader


def _says(text: str) -> Meta:
    return Meta(description=text)


class Error(Part, frozen=True, kw_only=True):
    message: Annotated[str, _says("What was refused, and the fact with its values.")]
    type: str
    code: Annotated[str, _says("A word that stays; the message may change.")]
    hint: Annotated[str, _says("What to try.")]
    problems: Annotated[list[str] | None, _says("Every mistake of a catalog, by line.")] = None


class Failure(Part, frozen=True, kw_only=True):
    error: Error


class Kept(Part, frozen=True, kw_only=True):
    """`warning`: why the word would not outlive this control, null while it does."""

    warning: str | None


class Paused(Kept, frozen=True, kw_only=True):
    paused: str


class Resumed(Kept, frozen=True, kw_only=True):
    paused: None
    was: str | None


class Confirmed(Kept, frozen=True, kw_only=True):
    confirmed: Digest
    engines: list[str]
    paused: str | None


class Cleared(Part, frozen=True, kw_only=True):
    model: str
    failures: int
    in_catalog: Annotated[bool, _says("False: of a model that was taken out of the catalog.")] = (
        True
    )


class Stopping(Part, frozen=True, kw_only=True):
    shard: str
    node: str
    pid: int | None
    waits: Annotated[str | None, _says("Why its end does not begin yet.")]


class Going(Part, frozen=True, kw_only=True):
    replica: str
    incarnation: str
    model: str
    shards: list[Stopping]


class Stopped(Kept, frozen=True, kw_only=True):
    stopping: list[Going]
    wanted: Annotated[dict[str, int], _says("Models of which others start, with their `min`.")]


class About(Part, frozen=True, kw_only=True):
    shard: str
    node: str
    pid: int | None


class Forced(Part, frozen=True, kw_only=True):
    forced: About
    sent: bool


class Leaves(Part, frozen=True, kw_only=True):
    shard: str
    node: str
    pid: int | None
    model: str
    what: str


class Drained(Kept, frozen=True, kw_only=True):
    node: str
    gpu: str | None
    where: str
    drained: str
    leaves: list[Leaves]


class Undrained(Kept, frozen=True, kw_only=True):
    node: str
    gpu: str | None
    where: str
    was: str | None
    still: Annotated[list[str], _says("What is drained there by a word of its own.")]
    leaves: Annotated[list[Leaves], _says("What had begun to leave: it is stopped all the same.")]


class Forgotten(Part, frozen=True, kw_only=True):
    node: str


class CatalogShown(Catalog, frozen=True, kw_only=True):
    """As `llmgw catalog show -o json`, and where it is from."""

    path: str
    error: str | None


class CatalogUsed(Part, frozen=True, kw_only=True):
    """`old`: where the file that this one replaced is kept."""

    path: str
    version: str
    old: str | None
    changes: list[str]
    paused: str | None


class TokenList(Part, frozen=True, kw_only=True):
    tokens: list[NodeToken]


class TokenMade(Part, frozen=True, kw_only=True):
    """`urls`: where other boxes find control, each with the hash of its certificate behind a #."""

    name: str
    token: str
    urls: list[str]


class TokenRevoked(Part, frozen=True, kw_only=True):
    """`nodes`: whose sessions end with it."""

    revoked: str
    nodes: list[str]


class KeyList(Part, frozen=True, kw_only=True):
    keys: list[Known]


class KeyMade(Kept, frozen=True, kw_only=True):
    name: str
    key: Annotated[str, _says("The secret, this once.")]
    unmatched: Annotated[list[str], _says("Patterns that fit no model of today.")]


class KeyRevoked(Kept, frozen=True, kw_only=True):
    revoked: str
    left: int


class Leads(Leader, frozen=True, kw_only=True):
    leader: bool
    leader_uuid: str


class HeardStandby(Part, frozen=True, kw_only=True):
    epoch: int
    catalog: str
    nodes: list[str]
    keys: dict[str, Any]
    controls: list[str]


class Ending(Part, frozen=True, kw_only=True):
    engines: int
    shards: list[str]


class Over(Part, frozen=True, kw_only=True):
    ends: list[str]
    pid: int
    gateway_pid: Annotated[int, _says("0: there is none.")]


class Healthy(Part, frozen=True, kw_only=True):
    ok: bool
    version: str


class Ready(Part, frozen=True, kw_only=True):
    ready: bool
    settling: Annotated[list[str], _says("Nodes that are waited for.")]
    why: str | None


class Event(Part, frozen=True, kw_only=True):
    """One line with `follow=1`. The rest says what it is about."""

    id: int
    at: Time
    kind: str
    why: str
