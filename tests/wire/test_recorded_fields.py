"""Fields that one side does not know: one more, one less, wherever it stands in any recorded message (F55, F56)."""

from __future__ import annotations

import copy

import pytest

from llmgw.errors import LlmgwError
from tests.wire.recordings import (
    KEY,
    MESSAGES,
    TABLES,
    VERSIONS,
    at,
    lost,
    path,
    places,
    read,
    recorded,
    written,
)


@pytest.mark.parametrize(("version", "name"), MESSAGES)
def test_f56_a_field_of_a_newer_version_changes_nothing(version: str, name: str) -> None:
    """Wherever it stands; and what is kept for others to read keeps it."""
    plain = recorded(version, name)
    was = written(name, read(name, plain))
    objects = {p[:-1] for p in places(plain) if isinstance(at(plain, p[:-1]), dict)}
    for place in sorted(objects, key=str):
        if place and place[-1] in TABLES:
            continue
        newer = copy.deepcopy(plain)
        at(newer, place)["novelty"] = {"a": [1]}
        now = written(name, read(name, newer))
        assert lost(was, now) == [], place
        if name == "record" or path(place) in KEPT.get(name, ()):
            assert at(now, place)["novelty"] == {"a": [1]}, place


#: Where a field that is not known is kept, and goes back out. A record keeps all of them, wherever they stand.
KEPT = {"register": ("", "shards"), "inventory": ("", "shards"), "events": ("shards",)}


# ---------------------------------------------------------------- what one side does not say

#: Without these there is no message; of the others each may be missing.
REQUIRED = {
    "register": {"node", "shards"},
    "inventory": {"node", "shards"},
    "registered": {"session", "epoch", "leader_uuid"},
    "commands": {
        *("commands.kind", "commands.shard", "commands.replica", "commands.incarnation"),
        *("commands.model", "commands.profile", "commands.reason"),
        *("commands.peers.rank", "commands.peers.node", "commands.peers.address"),
        *("commands.pid", "commands.start_ticks", "commands.start"),
        *(f"commands.start.{k}" for k in ("shard", "replica", "incarnation", "model", "profile")),
        *(f"commands.start.peers.{k}" for k in ("rank", "node", "address")),
        *(f"commands.sleep.{k}" for k in ("level", "asleep", "sleep", "wake")),
        *(f"commands.start.sleep.{k}" for k in ("level", "asleep", "sleep", "wake")),
    },
    "events": {"session", "n"}
    | {f"refused.{name}" for name in ("seq", "shard", "incarnation", "reason")},
    "routes": {"models.replicas.replica", "models.replicas.endpoint", "keys.id", "keys.sha256"},
    "demand": {"gateway", "n"},
    "token": {"epoch", "leader_uuid"},
}
#: What stands for "not said", where that is no empty value. These words mean the same for ever.
UNSAID = {
    "protocol": 1,
    "attempt": 1,
    "address": "127.0.0.1",
    "pools": ["default"],
    "reattached": True,
    "capacity": {"cpu_cores": None, "host_memory": None, "power_w": None, "ports": [18000, 18999]},
    "capacity.ports": [18000, 18999],
    "gpus.healthy": True,
    "shards.attempt": 1,
    "shards.state": "unknown",
    "shards.desired": "running",
    "match": True,
    "leader": True,
    "acting": True,
    "commands.attempt": 1,
    "commands.world_size": 1,
    "commands.launcher": "exec",
    "commands.pool": "default",
    "commands.health": "/health",
    "commands.start_timeout_s": 900.0,
    "commands.resources": {"gpu_memory": None, "host_memory": 0, "cpu_cores": 0, "power_w": 0},
    "commands.ready": {"token": False, "failures": 3, "of": 5},
    "commands.ready.failures": 3,
    "commands.ready.of": 5,
    "commands.stop": {"signal": "TERM", "grace_s": 20.0},
    "commands.stop.signal": "TERM",
    "commands.stop.grace_s": 20.0,
    "commands.restart": {"max": 5, "window_s": 1800.0, "backoff_s": 5.0},
    "commands.restart.max": 5,
    "commands.restart.window_s": 1800.0,
    "commands.restart.backoff_s": 5.0,
    "models.kind": "chat",
    "models.listed": True,
    "models.status": "unloaded",
    "models.wait_timeout_s": 300.0,
    "models.max_in_flight": 64,
    "models.queue": 128,
    "models.replicas.state": "ready",
    "models.replicas.weight": 1,
}
UNSAID |= {
    key.replace("commands.", "commands.start.", 1): word
    for key, word in UNSAID.items()
    if key.startswith("commands.")
} | {"commands.start.kind": "start"}
#: Told from another field: the name of a shard has both.
#: Without it nothing of its kind can be told apart.
NAMELESS = {"gpus.uuid", "foreign.pid"}
DERIVED = {"shards.replica", "shards.rank"}


@pytest.mark.parametrize(("version", "name"), [m for m in MESSAGES if m[1] != "record"])
def test_f55_a_field_that_an_older_version_leaves_out_reads_as_unknown(
    version: str, name: str
) -> None:
    plain = recorded(version, name)
    needed = set()
    for place in places(plain):
        if len(place) > 1 and place[-2] in TABLES:
            continue
        older = copy.deepcopy(plain)
        del at(older, place[:-1])[place[-1]]
        try:
            now = written(name, read(name, older))
        except LlmgwError:
            needed.add(path(place))
            continue
        if path(place) == "shards.shard":
            assert at(now, place[:-2])[place[-2]]["state"] == "unknown"  # held, whoever it is (A39)
            continue
        if path(place) in NAMELESS:
            assert not at(now, place[:1]), place  # unknown devices, no strangers (F59)
            continue
        unsaid = at(now, place[:-1]).get(place[-1])
        expected = UNSAID.get(path(place))
        if path(place) in DERIVED:
            assert unsaid == at(plain, place), place
        else:
            assert (unsaid == expected) if expected else not unsaid, place
        assert lost(older, now) == [], place
    assert needed == REQUIRED.get(name, set()) & set(map(path, places(plain)))


@pytest.mark.parametrize("version", VERSIONS)
def test_f55_a_record_with_a_field_less_is_read_or_held(version: str) -> None:
    plain = recorded(version, "record")
    for place in places(plain):
        older = copy.deepcopy(plain)
        del at(older, place[:-1])[place[-1]]
        record = read("record", older)
        assert record.key == KEY, place
        if record.unreadable or place == ("state",):
            assert record.state == "unknown", place
