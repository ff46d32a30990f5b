"""Records this version's messages and files, for every later version to read (F55, F56).

    python -m tests.wire.record [--again]

Writes tests/wire/recorded/VERSION, one file a kind, every field of it said. A recording is what went out into the
world: once its version is released it is never written again (`--again` is for before that). When a message changes,
change its sample here in the same commit; test_recorded.py says what is missing. May not check anything.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

import llmgw
from llmgw.agent import identity
from llmgw.agent.journal import Journal
from llmgw.agent.launch import markers
from llmgw.agent.markers import written
from llmgw.control.picture import Change, Moment, Picture
from llmgw.control.store import Store
from llmgw.core import route
from llmgw.core.adopt.survey import survey
from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.state import DrainBegun, Draining, Failure
from llmgw.wire import encode, report_document
from llmgw.wire.plan import plan_document
from llmgw.wire.status import Seen, status_document
from tests.core.world import catalog, demand, model, profile, running
from tests.wire import samples

FOLDER = Path(__file__).parent / "recorded"
#: The moment at which all of it was said.
WALL_S = 1_767_225_600.0
AT = "2026-01-01T00:00:00.000Z"


def world() -> Seen:
    """A small fleet with something of everything: routed, draining, unclaimed, waiting, drifted."""
    cat = catalog(
        model("alpha", profile("q4"), low=1, aliases=("first",)),
        model("beta", low=1),
        model("delta", low=1),
        model("gamma", profile(gpus=1), low=1),
        circuits={"office": 3000.0},
    )
    state = running(cat, samples.REPORT)
    state = observe(state, demand(1, in_flight={"alpha-7k2m": 2}, waiting={"gamma": 1}), 10.0)
    begun = DrainBegun("inc-delta", "operator", "an operator asked for it")
    state = observe(state, begun, 10.0)
    plan, found = decide(state, 20.0), survey(state)
    clock = Moment(20.0, WALL_S)
    table = route.table(state, found, 7)
    return Seen(
        state=state, found=found, plan=plan, routes=table, now=20.0, decided_s=20.0, iso=clock.iso
    )


def plan() -> bytes:
    seen = world()
    catalog, nodes = seen.state.catalog, seen.state.nodes
    return encode(
        plan_document(seen.plan, source="control", generated_at=AT, nodes=nodes, catalog=catalog)
    )


def status() -> bytes:
    document = status_document(world(), name="box0:4711", lease="file", catalog_path="catalog.yaml")
    return encode(document)


def inventory() -> bytes:
    return encode(report_document(samples.REPORT, secrets=False))


def record() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        journal.write(samples.RECORD)
        (path,) = journal.folder.glob("alpha*.json")
        return path.read_bytes()


def identity_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with identity.open_state_dir(Path(folder), "machine-1").lock:
            written_ = json.loads((Path(folder) / "identity.json").read_bytes())
        return encode(written_ | {"node_id": samples.NODE_ID, "boot_id": samples.BOOT_ID})


def environment() -> bytes:
    """What an engine carries with it, and is taken up by when its record is lost."""
    return encode(markers(samples.RECORD, samples.FACTS) | written(samples.RECORD, "m.gguf"))


def stored() -> bytes:
    """The inventory file, as SQL."""
    now = Moment(0.0, WALL_S)
    failure = Failure("inc-old", "q4", -60.0, "exited with code 1", gave_up=True, fingerprint="1:a")
    change = Change(
        nodes={"box1": Picture(samples.REPORT, unreachable=True, heard_at=AT)},
        draining={"inc-delta": Draining(-30.0, "operator", "an operator asked for it", 7)},
        failures={"alpha": (failure,)},
        sources={"catalog.yaml": "version: 1\nmodels: {}\n"},
        paused="2026-01-01T00:00:00Z by an operator",
        confirmed=frozenset({"inc-gone"}),
        events=({"id": 41, "at": AT, "kind": "adopt", "why": "matches q4", "node": "box1"},),
        durable=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inventory.db"
        store = Store(path, warn=print)
        store.open()
        store.write_epoch(12, samples.TOKEN.leader_uuid)
        store.save(change, now)
        store.close()
        with closing(sqlite3.connect(path)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            return "\n".join([*db.iterdump(), f"PRAGMA user_version={version};", ""]).encode()


#: Name of the file -> what goes over the wire, or lies on a disk.
KINDS: dict[str, Callable[[], bytes]] = {
    "register.json": lambda: encode(samples.REPORT),
    "inventory.json": inventory,
    "registered.json": lambda: encode(samples.REGISTERED),
    "commands.json": lambda: encode(samples.COMMANDS),
    "events.json": lambda: encode(samples.EVENTS),
    "events-reply.json": lambda: encode(samples.EVENTS_REPLY),
    "routes.json": lambda: encode(samples.ROUTES),
    "demand.json": lambda: encode(samples.DEMAND),
    "demand-reply.json": lambda: encode(samples.DEMAND_REPLY),
    "plan.json": plan,
    "status.json": status,
    "record.json": record,
    "token.json": lambda: encode(samples.TOKEN),
    "identity.json": identity_file,
    "environment.json": environment,
    "inventory.sql": stored,
}


def main(arguments: list[str]) -> int:
    folder = FOLDER / llmgw.__version__
    if folder.exists() and "--again" not in arguments:
        sys.stderr.write(f"{folder} is there: a released version's recording stays as it is\n")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in KINDS.items():
        data = make()
        if name.endswith(".json"):
            data = msgspec.json.format(data, indent=1) + b"\n"
        (folder / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
