"""Sleep: an engine that stays and gives its GPU memory back while nobody asks for it; its doors, orders and report.

Between ready and stopped: it keeps its process, its port and its place, is routed no more, and is woken by demand. What
it still uses while it sleeps was measured, and is all that it is charged then (A59, A62).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

#: Of a record: "" awake; `falling` asleep, its door is called until it says that it sleeps; `waking`: likewise the
#: other way; `proving`: awake by its own word, and not served by before it has made one real token; `asking`: found
#: without its record, so that only its door knows.
Nap = Literal["", "falling", "asleep", "waking", "proving", "asking"]


class Doors(Struct, frozen=True, kw_only=True):
    """How an engine is put to sleep at `level`, and woken: an engine's data file says so.

    Each of `sleep` and `wake` is a path to POST to, in this order, with a JSON body after a space. `asleep` answers a
    GET with `is_sleeping` in its JSON and never wakes it. `canary`: the model can be asked for a token.
    """

    level: int
    asleep: str
    sleep: tuple[str, ...]
    wake: tuple[str, ...]
    canary: bool = False


class Asleep(Struct, frozen=True, kw_only=True):
    """Of a shard that sleeps. Not `verified`: it is still falling asleep, and charged with all that it was given.

    `rest_bytes` is what it still uses, on the GPU where that is most; `freed_bytes` what came back, on all of them
    together. None where the driver does not tell: it is then charged as if it were awake.
    """

    verified: bool = False
    freed_bytes: int | None = field(default=None, name="freed")
    rest_bytes: int | None = field(default=None, name="rest")


class SleepShard(Struct, frozen=True, kw_only=True, tag_field="kind", tag="sleep"):
    """Put it to sleep by its own doors. Refused if not ready; control sends it once no request can come (A65)."""

    shard: str
    incarnation: str
    reason: str
    seq: int = 0
    session: str = ""
    epoch: int = 0
    leader_uuid: str = ""


class WakeShard(Struct, frozen=True, kw_only=True, tag_field="kind", tag="wake"):
    """Wake it. Refused where the memory that it gave back is another's now: nothing is given out twice."""

    shard: str
    incarnation: str
    reason: str
    seq: int = 0
    session: str = ""
    epoch: int = 0
    leader_uuid: str = ""
