"""The order in an engine's environment: `LLMGW_START`, enough to take the engine up whole when its journal is gone.

It is the unexpanded start without what is secret or of one session only, so `${env.X}` stays `${env.X}`. Its size is
bounded; an order that is too long goes without its command, and is then reported whole and not started again. Older
agents set the plain markers only, and those are read too. May not look at a process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from llmgw.core.supervise.claims import NAME, misnamed
from llmgw.core.types.messages import Resources, Start
from llmgw.core.types.node import Told
from llmgw.core.types.record import Key, Record

MARKER = "LLMGW_START"
FORMAT = 1
#: One string of an environment may hold 128 KiB; each of an engine's processes has its own copy.
MAX_BYTES = 16 << 10
#: A key is secret, an order's number and sender are of one session; what runs waits for nobody any more.
LEFT_OUT = ("api_key", "seq", "session", "epoch", "leader_uuid", "attempt", "after")
#: What has no bound of its own, left out where the whole is too long.
BULKY = ("command", "env", "peers", "image", "mounts")
#: Where built-in engines get their key.
KEY_NAMES = ("LLAMA_API_KEY", "VLLM_API_KEY")
_KEY, _HOST = "${api_key}", "${host}"
_PLAIN: dict[str, Any] = msgspec.to_builtins(
    Start(shard="", replica="", incarnation="", model="", profile="")
)


class Found(NamedTuple):
    """What an environment tells of the order that started its engine."""

    start: Start
    told: Told


def written(record: Record, artefact: str) -> dict[str, str]:
    """The marker to start this attempt with; none where not even the short form fits."""
    whole: dict[str, Any] = msgspec.to_builtins(record.start)
    order = {k: v for k, v in whole.items() if k not in LEFT_OUT and v != _PLAIN.get(k)}
    short = {k: v for k, v in order.items() if k not in BULKY}
    about = {"format": FORMAT, "artefact": artefact, "started_at": record.started_at}
    for start in (order, short):
        # ASCII, whatever the locale: this becomes bytes of an environment.
        text = json.dumps({**about, "start": start}, separators=(",", ":"))
        if len(text) <= MAX_BYTES:
            return {MARKER: text}
    return {}


def read(key: Key, env: Mapping[str, str], argv: Sequence[str]) -> Found:
    """The order that started an engine with this environment, as far as it tells."""
    # What is no text cannot be told to control.
    env = {name: text for name, text in env.items() if text.isascii() or _is_text(text)}
    attempt = env.get("LLMGW_ATTEMPT", "")
    told = Told(attempt=int(attempt) if _counts(attempt) else 1)
    told = msgspec.structs.replace(told, api_key=next((env[n] for n in KEY_NAMES if n in env), ""))
    whole = _whole(key, env.get(MARKER, ""))
    if whole is None:
        return Found(_plain(key, env), told)
    start = whole.start
    told = msgspec.structs.replace(
        told,
        artefact=whole.artefact,
        started_at=whole.started_at,
        api_key=_filled(_KEY, start, env, argv) or told.api_key,
        address=_filled(_HOST, start, env, argv),
        whole=True,
    )
    return Found(start, told)


class _Written(msgspec.Struct):
    start: Start
    format: int
    artefact: str = ""
    started_at: str = ""


def _whole(key: Key, text: str) -> _Written | None:
    """None for an older agent's engine, and for what does not name this shard: names become paths."""
    try:
        found = msgspec.json.decode(text, type=_Written)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    start = found.start
    right = found.format == FORMAT and (start.shard, start.incarnation) == key
    return found if right and misnamed(start) is None else None


def _plain(key: Key, env: Mapping[str, str]) -> Start:
    """What the plain markers tell; how to start it again is not in there."""
    shard, incarnation = key
    replica, _, rank = shard.rpartition("/")
    port = env.get("LLMGW_PORT", "")
    return Start(
        shard=shard,
        replica=replica,
        incarnation=incarnation,
        model=_name(env, "LLMGW_MODEL"),
        profile=_name(env, "LLMGW_PROFILE"),
        rank=int(rank),
        fingerprint=env.get("LLMGW_FINGERPRINT", ""),
        gpus=tuple(uuid for uuid in _gpus(env).split(",") if uuid),
        port=int(port) if _counts(port) else 0,
        resources=Resources(),
    )


def _gpus(env: Mapping[str, str]) -> str:
    """What CUDA is told may be numbers; agents before 0.1.0 set that only."""
    return env.get("LLMGW_GPUS", env.get("CUDA_VISIBLE_DEVICES", ""))


def _name(env: Mapping[str, str], marker: str) -> str:
    name = env.get(marker, "")
    return name if NAME.fullmatch(name) else ""


def _is_text(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _counts(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5  # noqa: PLR2004  a port's digits


def _filled(hole: str, start: Start, env: Mapping[str, str], argv: Sequence[str]) -> str:
    """What it was given, found where the order has this placeholder; an interpreter's words may come before."""
    places = [(text, env.get(name, "")) for name, text in start.env.items()]
    places += zip(reversed(start.command), reversed(argv), strict=False)
    for text, said in places:
        before, there, after = text.partition(hole)
        fits = there and "${" not in before + after and len(said) > len(before) + len(after)
        if fits and said.startswith(before) and said.endswith(after) and _is_text(said):
            return said[len(before) : len(said) - len(after)]
    return ""
