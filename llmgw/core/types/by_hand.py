"""What an agent sees of engines that somebody started by hand (A70, A71). Facts only."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Started(Struct, frozen=True, kw_only=True):
    """An engine that somebody started: a listening process, by its time of start, and its words with keys hidden."""

    pid: int = 0
    start_ticks: int = 0
    started_at: str = ""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    port: int = 0


class Fact(Struct, frozen=True):
    """One thing that a profile says of a process, and how it is with the one that runs."""

    what: str = ""
    wanted: str = ""
    runs: str = ""
    same: bool = False


class ByHand(Struct, frozen=True, kw_only=True):
    """The process at the pid that a `Take` names, looked at just now; `error` where that was not possible.

    `start_ticks` 0: there is no such process. `env` has those of its variables that the profile names. `marked`: the
    node of another agent that started it. `service`: the unit that would start it again. `gpus` None: cannot be seen.
    """

    error: str = ""
    start_ticks: int = 0
    started_at: str = ""
    command: str = ""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    env: dict[str, str] = {}
    api_key: str = ""
    weights: str = ""
    values: dict[str, str] = {}
    user: str = ""
    user_wanted: str = ""
    marked: str = ""
    container: bool = False
    service: str = ""
    gpus: tuple[str, ...] | None = None
    listener: Literal["", "ours", "other"] = ""
    listener_detail: str = ""
    health: str = ""
    health_detail: str = ""
