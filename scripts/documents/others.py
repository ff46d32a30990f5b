"""The small documents: catalog check, doctor, events, import, keys, node tokens, version, wait."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from scripts.documents.base import Document, Part, Time


class Version(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.version/1"

    version: str
    python: str
    system: str


class CatalogCheck(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.catalog-check/1"

    valid: bool
    problems: list[str]
    models: int
    profiles: int


class Catalog(Document, frozen=True, kw_only=True):
    """Models and profiles have the catalog's own keys, with `_s` and `_bytes` where they are numbers."""

    SCHEMA: ClassVar[str] = "llmgw.catalog/1"

    digest: str
    models: list[dict[str, Any]]
    circuits: dict[str, float]
    stray_grace_s: float
    assembly_window_s: float
    keep_unknown: bool
    start_limit: int


class Check(Part, frozen=True, kw_only=True, rename={"hint": "try"}):
    level: Literal["ok", "warn", "fail", "skip"]
    name: str
    fact: str
    hint: str | None


class Doctor(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.doctor/1"

    node: str
    checks: list[Check]
    exit_code: int


class Logs(Document, frozen=True, kw_only=True):
    """With `-f` each line is a document of its own, `shard` and `line` (JSON Lines)."""

    SCHEMA: ClassVar[str] = "llmgw.logs/1"

    shard: str
    lines: list[str]


class Events(Document, frozen=True, kw_only=True):
    """Each has `id`, `at`, `kind` and `why`; the rest says what it is about."""

    SCHEMA: ClassVar[str] = "llmgw.events/1"

    events: list[dict[str, Any]]


class Fate(Part, frozen=True, kw_only=True):
    key: str
    line: int
    became: str | None
    why: str


class Import(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.import/1"

    catalog: str
    keys: list[Fate]
    problems: list[str]


class Key(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.key/1"

    name: str
    key: str


class Limits(Part, frozen=True, kw_only=True):
    in_flight: float | None = None
    per_minute: float | None = None


class Known(Part, frozen=True, kw_only=True):
    id: str
    models: list[str] | None = None
    limits: Limits | None = None
    rights: list[str] | None = None
    created_at: Time | None = None


class Keys(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.keys/1"

    keys: list[Known]


class Wait(Document, frozen=True, kw_only=True, rename={"until": "for"}):
    SCHEMA: ClassVar[str] = "llmgw.wait/1"

    name: str
    until: Literal["ready", "stopped"]
    reached: bool
    state: str


class Token(Document, frozen=True, kw_only=True):
    """What the next box needs to join; `line` is all of it, to paste there. `pin`: null where control is plain HTTP."""

    SCHEMA: ClassVar[str] = "llmgw.token/1"

    name: str
    token: str
    urls: list[str]
    pin: str | None
    line: str


class NodeToken(Part, frozen=True, kw_only=True):
    """`node` and `node_id` are null until one has joined with it. `shared`: any node may have it."""

    name: str
    node: str | None
    node_id: str | None
    shared: bool


class Tokens(Document, frozen=True, kw_only=True):
    SCHEMA: ClassVar[str] = "llmgw.tokens/1"

    tokens: list[NodeToken]


DOCUMENTS = (
    Version, CatalogCheck, Catalog, Doctor, Events, Import, Key, Keys, Logs, Token, Tokens, Wait,
)  # fmt: skip
