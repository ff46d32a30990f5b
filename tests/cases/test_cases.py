"""Adoption as an operator sees it: one text file a story, with the very output of `llmgw adopt`.

A file opens with prose. `=== catalog` and `=== fleet` say what is there from here on (YAML; a fleet in the shorthand
below), and `=== adopt ...` runs the command on it and holds what must come out, then `exit N`. One inventory file lasts
for the whole story.

    REWRITE=1 .venv/bin/pytest tests/cases      writes what comes out; commit it only if you can explain it
"""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.say import llmgw

HERE = Path(__file__).parent
STORIES = sorted(HERE.glob("*.txt"))
GIB = 1 << 30
Json = dict[str, Any]


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Prose under the name "", then (title, body) of each section."""
    parts = re.split(r"^=== (.*)\n", text, flags=re.MULTILINE)
    yield "", parts[0]
    yield from zip(parts[1::2], parts[2::2], strict=True)


def engine(short: Json, node: str, address: str, started: dict[tuple[str, str], str]) -> Json:
    """`{shard, model}` and what differs from a healthy one; `without` drops fields, as an older agent does."""
    replica, _, rank = short["shard"].rpartition("/")
    profile = short.get("profile", "main")
    port = short.get("port", 18000)
    gpus = [f"GPU-{node}-{g}" for g in short.get("gpus", [])]
    whole = {
        "replica": replica,
        "incarnation": f"i-{replica}",
        "attempt": 1,
        "rank": int(rank),
        "world_size": 1,
        "profile": profile,
        "fingerprint": started.get((short["model"], profile), "1:feed"),
        "pool": "default",
        "port": port,
        "endpoint": f"http://{address}:{port}" if rank == "0" else "",
        "state": "ready",
        "desired": "running",
        "resources": {"gpu_memory": 10 * GIB if gpus else 0, "host_memory": GIB},
        "pid": 4000 + port % 1000,
        "started_at": "2026-01-01T00:00:00Z",
        **short,
        "gpus": gpus,
    }
    left_out = {"without", *whole.pop("without", [])}
    return {key: value for key, value in whole.items() if key not in left_out}


def inventory(name: str, short: Json, started: dict[tuple[str, str], str]) -> Json:
    address = short.get("address", "10.0.0.1")
    gpus = [
        {"uuid": f"GPU-{name}-{i}", "index": i, "name": "Test GPU", "memory": gib * GIB}
        for i, gib in enumerate(short.get("gpus", []))
    ]
    return {
        "protocol": 1,
        "node": name,
        "node_id": f"id-{name}",
        "instance": f"instance-{name}",
        "boot_id": f"boot-{name}",
        "address": address,
        "capacity": {"cpu_cores": 16, "host_memory": 64 * GIB, "power_w": 2000},
        "pools": short.get("pools", ["default"]),
        "labels": short.get("labels", {}),
        "circuit": short.get("circuit"),
        "fabrics": short.get("fabrics", {}),
        "foreign": short.get("foreign", []),
        "gpus": gpus,
        "reattached": short.get("reattached", True),
        "shards": [engine(e, name, address, started) for e in short.get("engines", [])],
    }


def told(text: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    """(title, wanted, got) of every section; what is not run comes back as it is."""
    catalog, db, report = folder / "catalog.yaml", folder / "inventory.db", folder / "r.json"
    started: dict[tuple[str, str], str] = {}
    for title, body in sections(text):
        got = body
        if title == "catalog":
            catalog.write_text(body)
            shown = llmgw("catalog", "show", catalog, "-o", "json")
            assert shown.code == 0, shown.err
            for model in json.loads(shown.out)["models"]:
                for profile in model["profiles"]:
                    started.setdefault((model["name"], profile["name"]), profile["fingerprint"])
        elif title == "fleet":
            fleet = yaml.safe_load(body) or {}
            report.write_text(
                json.dumps([inventory(n, s or {}, started) for n, s in fleet.items()])
            )
        elif title.startswith("adopt"):
            before = db.read_bytes() if db.exists() else None
            said = llmgw(
                *shlex.split(title), "--catalog", catalog, "--inventory", db, "--report", report
            )
            got = f"{said.out}{said.err}exit {said.code}\n"
            after = db.read_bytes() if db.exists() else None
            assert "--dry-run" not in title or before == after, "the dry run wrote the inventory"
        yield title, body, got


@pytest.mark.parametrize("path", STORIES, ids=lambda p: p.stem)
def test_story(path: Path, tmp_path: Path) -> None:
    found = list(told(path.read_text(), tmp_path))
    if os.environ.get("REWRITE"):
        path.write_text(
            "".join((f"=== {title}\n" if title else "") + got for title, _, got in found)
        )
    for title, wanted, got in found:
        assert got.strip() == wanted.strip(), f"{path.name}: {title}"


def test_every_story_says_why() -> None:
    assert STORIES
    for path in STORIES:
        title, prose = next(sections(path.read_text()))
        assert prose.startswith("# "), f"{path.name} does not say what it shows"
        assert not title
