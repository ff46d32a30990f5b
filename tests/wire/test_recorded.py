"""Every version's messages and files are read by this one, and nothing of them is lost (F55, F56).

Over tests/wire/recorded/VERSION, made by `python -m tests.wire.record`; released recordings stay as they are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import structlog

import llmgw
from llmgw.agent import markers
from llmgw.core.types.messages import Commands, Events, NodeReport, Registered
from llmgw.core.types.record import Record
from llmgw.core.types.routes import RouteTable
from llmgw.gateway.feed import ROUTES, Feed
from llmgw.gateway.settings import GatewaySettings
from llmgw.gateway.state import Gateway
from llmgw.render import plan as plan_page
from llmgw.render import status as status_page
from tests.wire import samples
from tests.wire.record import FOLDER, KINDS
from tests.wire.recordings import (
    KEY,
    MESSAGES,
    VERSIONS,
    lost,
    path,
    places,
    read,
    recorded,
    written,
)


def test_this_version_is_recorded() -> None:
    folder = FOLDER / llmgw.__version__
    missing = [name for name in KINDS if not (folder / name).exists()]
    assert not missing, (
        f"{folder} lacks {missing}: what this version says must be kept for every later one to read; "
        "python -m tests.wire.record writes it"
    )


@pytest.mark.parametrize("name", KINDS)
def test_what_is_recorded_is_what_this_version_says(name: str) -> None:
    """A message changed and its recording did not: fields of it are in nobody's recording."""
    said = KINDS[name]()
    kept = (FOLDER / llmgw.__version__ / name).read_bytes()
    why = "python -m tests.wire.record --again, as long as this version is not released"
    if name.endswith(".sql"):
        assert set(_tables(kept)) == set(_tables(said)), why
    else:
        assert set(map(path, places(json.loads(kept)))) == set(
            map(path, places(json.loads(said)))
        ), why


def _tables(sql: bytes) -> list[str]:
    return [line for line in sql.decode().splitlines() if line.startswith("CREATE TABLE")]


@pytest.mark.parametrize(
    "value",
    [
        *(samples.REPORT, samples.SHARD, samples.GPU, samples.START, samples.EVENTS),
        *(samples.REGISTERED, samples.EVENTS_REPLY, samples.COMMANDS, samples.DEMAND),
        samples.DEMAND_REPLY,
        *(samples.ROUTES, samples.ROUTES.models["alpha"], samples.ROUTES.keys[0], samples.RECORD),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_sample_says_every_field(value: msgspec.Struct) -> None:
    """What a sample leaves at "not said" is not recorded at all."""
    #: what there is but one word for
    only = {"protocol", "reattached", "rank", "world_size", "launcher", "extra", "watch", "desired"}
    silent = [
        f.name
        for f in msgspec.structs.fields(value)
        if f.default is not msgspec.NODEFAULT and getattr(value, f.name) == f.default
    ]
    assert not set(silent) - only, silent


@pytest.mark.parametrize(("version", "name"), MESSAGES)
def test_nothing_is_lost(version: str, name: str) -> None:
    plain = recorded(version, name)
    assert lost(plain, written(name, read(name, plain))) == []


def _report(r: NodeReport) -> None:
    assert (r.node, r.node_id, r.epoch_seen) == ("box1", samples.NODE_ID, 11)
    assert (r.boot_id, r.address) == (samples.BOOT_ID, "10.0.0.11")
    assert r.capacity.ports == (18000, 18099)
    assert r.gpus is not None
    assert (r.gpus[0].uuid, r.gpus[0].memory_bytes) == ("GPU-1111", 24 << 30)
    shard = r.shards[0]
    assert (shard.shard, shard.incarnation, shard.state) == (*KEY, "ready")
    assert (shard.rank, shard.world_size, shard.port, shard.attempt) == (0, 1, 18000, 2)
    assert shard.resources is not None
    assert shard.resources.gpu_memory_bytes == 18 << 30
    assert [s.state for s in r.shards] == ["ready", "ready", "draining", "unknown"]
    assert r.foreign[0].memory_bytes == 1 << 30


def _register(r: NodeReport) -> None:
    _report(r)
    assert r.shards[0].api_key == "secret-of-the-engine"
    assert r.registration == 987_654_321


def _inventory(r: NodeReport) -> None:
    _report(r)
    assert r.shards[0].api_key is None


def _commands(c: Commands) -> None:
    start, drain, stop, forget, report, take, sleep, wake = c.commands
    assert [x.seq for x in c.commands] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {(x.session, x.epoch) for x in c.commands} == {(samples.SESSION, 12)}
    assert start == samples.START
    assert [type(x).__name__ for x in (drain, stop, forget, report)] == [
        "DrainShard",
        "StopShard",
        "ForgetShard",
        "SendReport",
    ]
    assert stop == samples.COMMANDS.commands[2]
    assert take == samples.COMMANDS.commands[5]
    assert [type(x).__name__ for x in (sleep, wake)] == ["SleepShard", "WakeShard"]


def _events(e: Events) -> None:
    assert (e.session, e.n, e.applied) == (samples.SESSION, 17, 5)
    assert e.gone == (("old-1/0", "inc-old"),)
    assert (e.refused[0].reason, e.refused[0].resource) == ("port_in_use", "port 18000")


def _registered(r: Registered) -> None:
    assert (r.session, r.epoch, r.leader, r.read_only) == (samples.SESSION, 12, False, True)


def _routes(t: RouteTable) -> None:
    assert (t.version, t.partial) == (12_000_007, True)
    (replica,) = t.models["alpha"].replicas
    assert (replica.endpoint, replica.state, replica.weight) == (
        "http://10.0.0.11:18000",
        "draining",
        3,
    )
    assert t.keys[0].models == ("alpha",)


def _record(r: Record) -> None:
    assert r.key == KEY
    assert (r.state, r.desired, r.pid, r.start_ticks) == ("ready", "draining", 4711, 123_456)
    assert (r.boot_id, r.signalled, r.attempt) == (samples.BOOT_ID, "stop", 2)
    assert r.start.command == samples.START.command


VALUES: dict[str, Callable[[Any], None]] = {
    "register": _register,
    "inventory": _inventory,
    "registered": _registered,
    "commands": _commands,
    "events": _events,
    "routes": _routes,
    "record": _record,
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VALUES)
def test_it_means_what_it_meant(version: str, name: str) -> None:
    VALUES[name](read(name, recorded(version, name)))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_of_every_version_is_taken_up_by_its_environment(version: str) -> None:
    env = recorded(version, "environment")
    assert env["LLMGW_NODE_ID"] == samples.NODE_ID
    argv = [part.replace("${api_key}", "the-key") for part in samples.START.command]
    found = markers.read(KEY, env, argv)
    left_out = {"attempt": 1, "api_key": "", "seq": 0, "session": "", "epoch": 0, "leader_uuid": ""}
    # An engine that runs waits for no other to end: later versions do not say so.
    start = msgspec.structs.replace(found.start, after=())
    assert start == msgspec.structs.replace(samples.START, after=(), **left_out)
    assert (found.told.attempt, found.told.whole, found.told.api_key) == (2, True, "the-key")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_controls_documents_are_shown(version: str) -> None:
    """And what a script finds in them is still there: a key of a document is never taken away under its schema."""
    for name in ("plan", "status"):
        old, new = recorded(version, name), json.loads(KINDS[f"{name}.json"]())
        assert old["schema"] == new["schema"], "another schema: keep showing the older one"
        assert set(map(path, places(old))) <= set(map(path, places(new)))
    assert "alpha-7k2m" in str(plan_page.page(recorded(version, "plan")))
    assert "alpha-7k2m" in str(status_page.page(recorded(version, "status"), now_s=0.0))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_gateway_starts_from_the_table_that_any_version_left_on_disk(
    version: str, tmp_path: Path
) -> None:
    """Control may be away for longer than the upgrade takes."""
    shutil.copy(FOLDER / version / "routes.json", tmp_path / ROUTES)
    gateway = Gateway(clock=lambda: 0.0, access=None, open_without_keys=False)
    settings = GatewaySettings(controls=(), state_dir=tmp_path)
    Feed(gateway, cast("Any", None), settings, structlog.get_logger()).restore()
    assert gateway.fleet.table == samples.ROUTES
    assert gateway.resolve("first") is gateway.resolve("alpha") is not None
