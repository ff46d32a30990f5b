"""What all documents are made of. Times are ISO 8601 UTC, sizes bytes, durations seconds."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

Time = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]
Bytes = Annotated[int, Meta(ge=0)]
Watts = Annotated[float, Meta(ge=0)]
Digest = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]


class Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mapping in a document."""


class Document(Part, frozen=True, kw_only=True):
    """A whole one; `schema` says which."""

    SCHEMA: ClassVar[str]

    schema: str
