"""The shape of the keys that are taken over, so that another one is an error with its place and not a crash.

Names are those of the file. May not know what becomes of a key.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from llmgw.errors import CatalogError

Scalar = str | int | float | bool


class _Capabilities(Struct):
    context: int | None = None
    reranker: bool = False


class _Model(Struct):
    cmd: str = ""
    macros: dict[str, Scalar] | None = None
    env: list[str] | None = None
    aliases: list[str] | None = None
    checkEndpoint: str = ""  # noqa: N815
    ttl: int = -1
    unlisted: bool = False
    concurrencyLimit: int = 0  # noqa: N815
    unloadTimeout: int | None = None  # noqa: N815
    capabilities: _Capabilities | None = None


class _Group(Struct):
    persistent: bool = False
    members: list[str] | None = None


class _Settings(Struct):
    groups: dict[str, _Group | None] | None = None
    matrix: dict[str, Any] | None = None


class _Router(Struct):
    settings: _Settings | None = None


class _Fifo(Struct):
    priority: dict[str, int] | None = None


class _Scheduled(Struct):
    fifo: _Fifo | None = None


class _Scheduler(Struct):
    settings: _Scheduled | None = None


class _Routing(Struct):
    router: _Router | None = None
    scheduler: _Scheduler | None = None


class _OnStartup(Struct):
    preload: list[str] | None = None
    profile: str | None = None


class _Hooks(Struct):
    on_startup: _OnStartup | None = None


class _File(Struct):
    healthCheckTimeout: int = 120  # noqa: N815
    globalTTL: int = 0  # noqa: N815
    unloadTimeout: int | None = None  # noqa: N815
    macros: dict[str, Scalar] | None = None
    models: dict[str, _Model | None] | None = None
    groups: dict[str, _Group | None] | None = None
    matrix: dict[str, Any] | None = None
    routing: _Routing | None = None
    hooks: _Hooks | None = None


def check(name: str, data: Any) -> None:
    """CatalogError where a key that is taken over has another shape."""
    try:
        msgspec.convert(data, _File)
    except (msgspec.ValidationError, RecursionError) as e:
        raise CatalogError((f"{name}: is no llama-swap configuration: {e}",)) from e
