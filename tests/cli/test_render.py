"""How documents look: whole and plain through a pipe, coloured and wrapped on a terminal, the same words in both."""

import re
from typing import Any

import pytest

from llmgw.render import page, plan, status
from llmgw.render.page import Table

NOW_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z
GIB = 1 << 30
GPU = {"uuid": "GPU-a", "index": 0, "name": "NVIDIA GeForce RTX 3090", "memory": 24 * GIB}
SHARD = {
    "shard": "coder-7k2/0",
    "node": "box1",
    "gpus": ["GPU-a"],
    "port": 18000,
    "pid": 4711,
    "state": "ready",
    "progress": None,
    "compute": {"device": "cuda", "layers_gpu": 49, "layers_total": 49},
    "error": None,
}
REPLICA = {
    "replica": "coder-7k2",
    "incarnation": "i",
    "model": "coder",
    "profile": "q4",
    "state": "ready",
    "have": 1,
    "want": 1,
    "endpoint": "http://10.0.0.11:18000",
    "in_flight": 2,
    "since": "2025-12-28T20:00:00Z",
    "drift": None,
    "breaker": "closed",
    "shards": [SHARD],
}
MODEL = {
    "name": "coder",
    "aliases": ["default"],
    "state": "ready",
    "min": 0,
    "max": 2,
    "ready": 1,
    "waiting": 0,
    "idle_until": None,
    "why": None,
}
NODE = {
    "node": "box1",
    "state": "ready",
    "version": "0.1.0",
    "gpus": [
        {
            **GPU,
            "used": 18 * GIB,
            "reserved": 18 * GIB,
            "foreign": 2 * GIB,
            "power_w": 212.0,
            "power_limit_w": 300.0,
            "link": "gen1 x8 of gen4 x16",
            "driver": "570.86.15",
        }
    ],
    "power_w": 212.0,
    "power_budget_w": 300.0,
    "engines": 1,
}


def fleet(**more: Any) -> dict[str, Any]:
    return {
        "schema": "llmgw.status/1",
        "settling": None,
        "blocked": None,
        "catalog": {"path": "c.yaml", "version": "1", "error": None},
        "nodes": [NODE],
        "models": [MODEL],
        "replicas": [REPLICA],
        "stops_pending": [],
        "warnings": [],
        **more,
    }


def text(document: dict[str, Any], *, name: str = "", wide: bool = False) -> list[str]:
    shown = status.narrow(document, name) if name else document
    assert shown is not None
    return page.plain(status.page(shown, name=name, wide=wide, now_s=NOW_S)).splitlines()


def test_a_fleet_in_columns() -> None:
    assert text(fleet()) == [
        "NODE  STATE  GPU         MEMORY         POWER      ENGINES",
        "box1  ready  0 RTX 3090  18.0/24.0 GiB  212/300 W  1",
        "MODEL  REPLICA    NODE  GPU  STATE  REQS  IDLE UNTIL  AGE   WHERE",
        "coder  coder-7k2  box1  0    ready  2     busy        3d4h  gpu 49/49",
    ]


def test_wide_adds_what_is_asked_for_when_something_is_odd() -> None:
    held = {"gpu_peak": 18 * GIB, "host_peak": 3 * GIB}
    shard = {**SHARD, "error": "out of memory", **held}
    node, engine = (
        line
        for line in text(
            fleet(replicas=[{**REPLICA, "drift": "args changed", "shards": [shard]}]), wide=True
        )
        if line.startswith(("box1", "coder"))
    )
    assert node.endswith(
        "1        6.0 GiB  18.0 GiB  2.0 GiB  212/300 W  gen1 x8 of gen4 x16  570.86.15  0.1.0"
    )
    assert engine.endswith(
        "q4       18.0 GiB  3.0 GiB    4711  http://10.0.0.11:18000  out of memory; args changed"
    )


def test_a_model_that_loads_and_one_that_sleeps() -> None:
    loading = {**SHARD, "state": "loading", "progress": 0.63, "gpus": [], "compute": None}
    asleep = {**MODEL, "name": "embed", "aliases": [], "state": "unloaded", "ready": 0}
    document = fleet(
        replicas=[
            {
                **REPLICA,
                "state": "starting",
                "in_flight": 0,
                "since": "2025-12-31T23:59:00Z",
                "shards": [loading],
            }
        ],
        models=[{**MODEL, "state": "loading", "ready": 0, "waiting": 1}, asleep],
    )
    assert text(document)[3:] == [
        "coder  coder-7k2  box1  -    loading 63% eta 35s  1w    -           1m   cpu",
        "embed  -          -     -    unloaded             -     -           -    -",
    ]
    assert status.complaints(document) == []


def test_a_replica_over_two_nodes_has_a_line_for_each() -> None:
    second = {**SHARD, "shard": "coder-7k2/1", "node": "box2", "state": "loading"}
    replica = {**REPLICA, "state": "assembling", "have": 2, "want": 2, "shards": [SHARD, second]}
    lines = text(fleet(replicas=[replica]))
    assert [line.split()[1:3] for line in lines[3:]] == [
        ["coder-7k2/0", "box1"],
        ["coder-7k2/1", "box2"],
    ]
    assert "ready (assembling)" in lines[3]


@pytest.mark.parametrize("name", ["box1", "coder", "default", "coder-7k2", "coder-7k2/0"])
def test_a_name_narrows_it(name: str) -> None:
    other = {**REPLICA, "replica": "other-1", "model": "other", "shards": []}
    lines = text(fleet(replicas=[REPLICA, other]), name=name)
    assert not any("other" in line for line in lines)
    assert any("coder-7k2" in line for line in lines)
    assert status.narrow(fleet(), "nobody") is None


def test_what_is_said_of_one_is_found_by_its_alias_and_not_by_a_name_that_begins_like_it() -> None:
    of_it = "coder-7k2/0 on box1 computes on the CPU"
    warnings = [of_it, "coder2 fits nowhere", "my-coder is full", "box12 is silent"]
    for name in ("default", "coder", "coder-7k2", "coder-7k2/0", "box1"):
        shown = status.narrow(fleet(warnings=warnings), name)
        assert shown is not None
        assert shown["warnings"] == [of_it], name


def test_that_control_is_away_is_said_of_one_model_too() -> None:
    """As one agent knows it: no catalog, and one warning, which is about all of it."""
    alone = fleet(catalog=None, models=[], warnings=["no control: only what runs on box1 is shown"])
    assert text(alone, name="coder")[-1].startswith("warning: no control")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"blocked": "would stop 9 engines"}, "blocked: would stop 9 engines"),
        (
            {"catalog": {"error": "c.yaml:1:1: no\nc.yaml:2:1: no"}},
            "warning: the catalog on disk is not used: c.yaml:1:1: no (and 1 more)",
        ),
        ({"nodes": [{**NODE, "state": "unreachable"}]}, "warning: node box1 is unreachable"),
        (
            {"models": [{**MODEL, "state": "failed", "ready": 0, "why": "exit 1"}]},
            "warning: model coder is failed, 0 of 1 ready: exit 1; llmgw clear coder lets it start again",
        ),
        ({"warnings": ["coder runs on the CPU"]}, "warning: coder runs on the CPU"),
    ],
)
def test_what_needs_attention_is_said(more: dict[str, Any], said: str) -> None:
    assert status.complaints(fleet(**more)) == [said]
    assert said in text(fleet(**more))


def test_an_open_breaker_is_a_complaint() -> None:
    """Cron is to hear of a replica that is up and gets no request; a half-open one is on its way back."""
    broken = {**REPLICA, "breaker": "open", "breaker_why": "3 connections refused"}
    said = "warning: the breaker of coder-7k2 is open, no request goes there: 3 connections refused"
    assert status.complaints(fleet(replicas=[broken])) == [said]
    assert status.complaints(fleet(replicas=[{**REPLICA, "breaker": "half-open"}])) == []


def test_how_far_a_roll_is() -> None:
    old = {**REPLICA, "replica": "coder-old", "drift": "args: -c 32768 -> 65536"}
    assert text(fleet(replicas=[REPLICA, old]))[-1] == (
        "roll of coder: 1 of 2 run as the catalog says now; coder-old: args: -c 32768 -> 65536"
    )


def test_when_it_goes_idle_and_in_how_long() -> None:
    model = {**MODEL, "idle_until": "2026-01-01T00:05:12Z"}
    row = text(fleet(models=[model], replicas=[{**REPLICA, "in_flight": 0}]))[3]
    assert re.search(r"ready  -     \d\d:05:12 in 5m12s  3d4h", row)


def test_wide_names_who_else_holds_memory() -> None:
    """Task 12: what is ours, what is not, what is free; as nvidia-smi has it."""
    others = [
        {"pid": 4242, "gpu": "GPU-a", "memory": 2 * GIB, "command": "python comfy.py", "port": None},
        {"pid": 4711, "gpu": "GPU-a", "memory": GIB, "command": "x", "shard": "coder-7k2/0"},
        {"pid": 99, "gpu": None, "memory": 0, "command": "ollama serve", "port": 11434},
        {"pid": 98, "gpu": None, "memory": 0, "command": "vllm", "port": 1, "why": "is node old's"},
    ]  # fmt: skip
    document = fleet(nodes=[{**NODE, "foreign": others}])
    assert text(document, wide=True)[-5:] == [
        "NODE  GPU  PID   PORT   MEMORY   NOT OURS",
        "box1  0    4242  -      2.0 GiB  python comfy.py",
        "box1  0    4711  -      1.0 GiB  x (coder-7k2/0, beyond what it was given)",
        "box1  -    99    11434  -        ollama serve",
        "box1  -    98    1      -        vllm (is node old's)",
    ]
    assert not any("comfy" in line for line in text(document))


def test_what_is_under_way_is_said() -> None:
    drain = {"shard": "a-1/0", "reason": "operator", "why": "draining: an operator asked for it"}
    due = {"stops_pending": [{**drain, "at": "2026-01-01T00:00:00Z"}]}
    assert re.fullmatch(
        r"stop pending: a-1/0, operator, at the latest at \d\d:\d\d:\d\d: draining: an operator .*",
        text(fleet(**due))[-1],
    )
    stop = {"shard": "old-1/0", "reason": "model_removed", "at": "2026-01-01T00:00:00Z"}
    settling = {"since": "2026-01-01T00:00:00Z", "waiting_for": ["box2"]}
    lines = text(fleet(settling=settling, stops_pending=[stop]))
    assert lines[4].startswith("settling: waiting for box2;")
    assert re.fullmatch(r"stop pending: old-1/0, model_removed, at \d\d:\d\d:\d\d", lines[5])


def test_a48_a_pause_is_said_and_is_no_complaint() -> None:
    """Else cron would call whoever paused it; what a pause holds back is marked, with its time if it has one."""
    stop = {"shard": "old-1/0", "reason": "model_removed", "withheld": "paused since noon"}
    at = "2026-01-01T00:00:00Z"
    document = fleet(paused="since noon", stops_pending=[{**stop, "at": at}, {**stop, "at": None}])
    assert status.complaints(document) == []
    paused, timed, due = text(document)[4:]
    assert paused.startswith("paused since noon; nothing is stopped")
    assert "llmgw resume" in paused
    assert re.fullmatch(
        r"stop pending: old-1/0, model_removed, at \d\d:\d\d:\d\d, held back", timed
    )
    assert due == "stop pending: old-1/0, model_removed, held back"


def test_an_empty_fleet_says_so() -> None:
    assert text(fleet(nodes=[], models=[], replicas=[])) == ["no node has registered"]


def test_a_plan_of_nothing() -> None:
    empty: dict[str, Any] = {
        "shards": [],
        "nodes": [],
        "actions": [],
        "foreign": [],
        "complete": True,
        "disturbs": 0,
        "digest": "sha256:0",
    }
    assert page.plain(plan.page(empty)).splitlines() == [
        "no engine runs",
        "0 adopted.  Restart would disturb no engine.   digest sha256:0",
    ]


def shard_row(name: str, verdict: str) -> dict[str, Any]:
    about = {"shard": f"{name}/0", "replica": name, "incarnation": f"i-{name}", "gpus": []}
    return about | {"node": "box1", "port": 1, "state": "ready", "verdict": verdict, "why": "why"}


def action_row(kind: str, name: str, withheld: str | None) -> dict[str, Any]:
    about = {"action": kind, "replica": name, "incarnation": f"i-{name}", "model": "m"}
    return about | {"node": "box1", "gpus": [], "why": "why", "due_s": 0.0, "withheld": withheld}


def test_a49_what_is_held_back_is_marked_and_explained_once() -> None:
    document = {
        "shards": [shard_row("a", "unclaimed"), shard_row("b", "unclaimed")],
        "nodes": [],
        "actions": [
            action_row("stop", "a", "too many"),
            action_row("stop", "b", None),
            action_row("roll", "c", "too many"),
            action_row("roll", "d", "paused since noon"),
        ],
        "complete": True,
        "disturbs": 4,
        "digest": "sha256:0",
        "blocked": {"digest": "sha256:b", "why": "too many", "engines": ["a", "c"]},
    }
    assert page.plain(plan.page(document)).splitlines()[1:-1] == [
        "- stop   a/0    box1  cpu   1     ready  unclaimed: why (blocked)",
        "- stop   b/0    box1  cpu   1     ready  unclaimed: why",
        "then  -/+ roll  c  why (blocked)",
        "      -/+ roll  d  why (paused)",
        "paused since noon",
        "blocked: too many; llmgw confirm sha256:b lets it happen",
    ]


def test_what_is_adopted_and_then_replaced_says_so_at_its_own_line() -> None:
    drift = "profile p changed since it was started"
    then = {"action": "roll", "why": drift, "withheld": None}
    rolled = shard_row("a", "adopt") | {"model": "m", "profile": "p", "then": then}
    rolled["why"] = f"running since noon, {drift}"
    rank = rolled | {"shard": "a/1", "verdict": "join", "why": "2 of 2 shards"}
    leaves = {"action": "drain", "why": "box1 is drained", "withheld": "paused since noon"}
    document = {
        "shards": [rolled, rank, shard_row("b", "keep") | {"then": leaves}],
        "nodes": [],
        "actions": [],
        "changes": ["m/p: args: -c 1 -> 2 (restart)"],
        "complete": True,
        "disturbs": 3,
        "digest": "sha256:0",
    }
    at, args = "box1  cpu   1     ready  ", "args: -c 1 -> 2"
    assert page.plain(plan.page(document)).splitlines()[1:4] == [
        f"= adopt  a/0    {at}adopt, then rolled: {args}; running since noon, {drift}",
        f"= join   a/1    {at}join, then rolled: {args}; {drift}; 2 of 2 shards",
        f"= keep   b/0    {at}keep, then drained: box1 is drained; why (paused)",
    ]


LEADER = {"name": "a:1", "epoch": 7, "lease": "etcd", "leading": True, "answered_by": "a:1"}
STANDBY = {"name": "b:2", "lag_s": 0.4, "missing": [], "same_catalog": True}


@pytest.mark.parametrize(
    ("leader", "words"),
    [
        ({"name": "a:1", "epoch": 7, "lease": "file", "standbys": []}, []),
        (LEADER | {"standbys": []}, ["a:1 leads with epoch 7, lease etcd; no standby"]),
        (
            LEADER | {"lease": "file", "standbys": [STANDBY]},
            ["a:1 leads with epoch 7, lease file; stands by: b:2 (lag 0.4 s)"],
        ),
        (
            LEADER | {"standbys": [], "leading": False, "answered_by": "b:2"},
            ["b:2 stands by; a:1 leads with epoch 7, lease etcd"],
        ),
        (
            LEADER | {"standbys": [], "leading": False},
            ["a:1 stands by; nobody leads as far as it knows"],
        ),
        (
            LEADER | {"standbys": [STANDBY | {"missing": ["box2"], "same_catalog": False}]},
            [
                "a:1 leads with epoch 7, lease etcd; stands by: b:2 (lag 0.4 s)",
                "warning: box2 registered with the leader and not with b:2",
                "warning: the catalog of b:2 is another than the leader's",
            ],
        ),
    ],
)
def test_who_leads_is_a_line_where_there_is_more_than_one_control(
    leader: dict[str, Any], words: list[str]
) -> None:
    document = {"leader": leader, "nodes": [], "models": [], "replicas": []}
    assert status.notes(document) == words


def test_a62_where_a_model_could_go_is_a_table_of_its_own() -> None:
    full = "GPU 0 has 4.0 of 24.0 GiB free, 18.0 needed (held by b-1/0)"
    places = [
        {"node": "box1", "profile": "q4", "takes": "no", "why": full},
        {
            "node": "box2",
            "profile": "q4",
            "takes": "yes",
            "why": "fits box2 GPU 0, 6.0 GiB left there",
        },
    ]
    document = fleet(models=[MODEL | {"places": places}])
    *_, table = [p for p in status.page(document, now_s=NOW_S) if isinstance(p, Table)]
    assert table.head == ["NODE", "PROFILE", "TAKES", "WHY"]
    assert table.rows == [list(p.values()) for p in places]
