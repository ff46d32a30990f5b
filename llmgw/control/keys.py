"""API keys of clients: made, listed, revoked, kept (contract/http.md "keys").

Answers for: a key is random, shown once, and known here by its SHA-256 only; what a key may do travels to gateways in
the route table, so that they check it with control away. It may not see a client's request.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from llmgw.core.names import unknown
from llmgw.core.supervise.claims import NAME
from llmgw.core.types.catalog import Catalog
from llmgw.core.types.routes import RouteKey, RouteTable
from llmgw.errors import LlmgwError, UsageError

#: What a limit may be of: requests that run at one time, and requests begun within a minute.
LIMITS = ("in_flight", "per_minute")
LIMIT_MAX = 1_000_000
RIGHTS = ("upstream",)
KEYS_MAX = 1000
PREFIX = "llmgw-"
WHAT, LIST = "API key", "`llmgw key list` shows them"
#: What follows when there is no key any more.
OPEN = "with none left everybody may ask on loopback, and of a gateway with --insecure; else nobody"
#: The last table of the gateway on this box (llmgw.gateway.feed).
ROUTES = "routes.json"


class ApiKey(Struct, frozen=True, kw_only=True):
    """`models` None: all. `rights`: beyond the usual calls, see `RIGHTS`."""

    id: str
    sha256: str
    created_at: str = ""
    models: tuple[str, ...] | None = None
    limits: dict[str, float] = {}
    rights: tuple[str, ...] = ()


class Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/keys`."""

    name: str
    models: tuple[str, ...] | None = None
    limits: dict[str, float] = {}
    rights: tuple[str, ...] = ()


class Revoking(Struct, frozen=True):
    """The body of `POST /api/v1/keys/NAME/revoke`. `last`: it is meant, though there is no other key."""

    last: bool = False


Keys = dict[str, ApiKey]


def added(keys: Keys, want: Wanted, at: str) -> tuple[Keys, str]:
    """The keys with one more, and its secret: this is the one time that it is known."""
    if not NAME.fullmatch(want.name):
        msg = f"{want.name[:80]!r} is no name for a key"
        raise UsageError(
            msg, "letters, digits, dot, dash and underscore, at most 63, e.g. open-webui"
        )
    if want.name in keys:
        msg = f"there is a key called {want.name} already, made {keys[want.name].created_at}"
        hint = f"`llmgw key revoke {want.name}` first, or take another name"
        raise LlmgwError(msg, hint, code="duplicate_key", status=409)
    if len(keys) >= KEYS_MAX:
        msg = f"there are {len(keys)} keys, and {KEYS_MAX} is the limit"
        raise LlmgwError(msg, "revoke some: `llmgw key list`", code="too_many_keys", status=409)
    _check(want)
    secret = PREFIX + secrets.token_urlsafe(32)  # 256 bits: nothing slower than SHA-256 is needed
    key = ApiKey(
        id=want.name,
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        created_at=at,
        models=want.models,
        limits=want.limits,
        rights=want.rights,
    )
    return keys | {want.name: key}, secret


def _check(want: Wanted) -> None:
    if want.models is not None and not want.models:
        msg = f"key {want.name} may use no model at all"
        raise UsageError(msg, "name models or globs, or leave it out: all of them")
    for name, limit in want.limits.items():
        if name not in LIMITS or not 1 <= limit <= LIMIT_MAX:
            msg = f"limit {name[:40]} {limit:g} is refused"
            raise UsageError(msg, f"one of {', '.join(LIMITS)}, from 1 to {LIMIT_MAX}")
    for right in want.rights:
        if right not in RIGHTS:
            msg = f"{right[:40]!r} is no right of a key"
            raise UsageError(msg, f"one of: {', '.join(RIGHTS)}")


def without(keys: Keys, name: str, *, last: bool) -> Keys:
    """Taking a right away must not give it to everybody, which is what no key at all may mean."""
    if name not in keys:
        raise unknown(WHAT, name, sorted(keys), LIST)
    if len(keys) == 1 and not last:
        msg = f"{name} is the last API key: {OPEN}"
        hint = "`llmgw key add NAME` makes another first; to mean it: `llmgw key revoke --yes`"
        raise LlmgwError(msg, hint, code="last_key", status=409)
    return {n: k for n, k in keys.items() if n != name}


def overruled(ours: Keys, theirs: Keys) -> str:
    """What of ours is over or another by theirs, "" for nothing; that there are more is what a standby expects."""
    news = [f"{name} goes" for name in ours if name not in theirs]
    news += [f"{n} is another" for n in theirs if n in ours and theirs[n] != ours[n]]
    return ", ".join(news)


def unmatched(key: ApiKey, catalog: Catalog) -> list[str]:
    """Patterns of its list that fit no model of today, nor an alias: most likely mistyped."""
    names = [n for m in catalog.models.values() for n in (m.name, *m.aliases)]
    return [p for p in key.models or () if not any(fnmatchcase(n, p) for n in names)]


def routed(keys: Keys) -> tuple[RouteKey, ...]:
    return tuple(
        RouteKey(id=k.id, sha256=k.sha256, models=k.models, limits=k.limits, rights=k.rights)
        for _, k in sorted(keys.items())
    )


def shown(keys: Keys) -> list[dict[str, Any]]:
    """For people: without the hash, which nobody needs to see."""
    documents: list[dict[str, Any]] = msgspec.to_builtins([k for _, k in sorted(keys.items())])
    return [{name: v for name, v in d.items() if name != "sha256"} for d in documents]


# ---------------------------------------------------------------- rows


def rows_of(keys: Keys) -> list[tuple[str, str]]:
    return [(name, msgspec.json.encode(key).decode()) for name, key in keys.items()]


def keys_of(rows: Iterable[tuple[str, str]], warn: Callable[[str], None]) -> Keys:
    """Each alone: a bad one costs itself only (F20)."""
    found: Keys = {}
    for name, text in rows:
        try:
            found[name] = msgspec.json.decode(text, type=ApiKey)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as e:
            warn(f"API key {name} in the inventory is left out: {e}")
    return found


def recalled(gateway: Path, at: str, warn: Callable[[str], None]) -> Keys:
    """With the inventory lost: what this box's gateway has on disk; else all clients would be let in, or locked out."""
    try:
        table = msgspec.json.decode((gateway / ROUTES).read_bytes(), type=RouteTable)
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeError):
        return {}
    found = {k.id: ApiKey(created_at=at, **msgspec.structs.asdict(k)) for k in table.keys}
    if found:
        warn(f"{len(found)} API keys are taken from the gateway's last table: the inventory is new")
    return found
