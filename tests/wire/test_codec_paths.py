"""The fast way to read a report and the tolerant one say the same, on messages whole, mangled and newer (F55, F56).

`decode_report` may take either way; `report_of` reads plain values, field by field.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.types.messages import SHARD_STATES, Events, NodeReport
from llmgw.wire import WireError, decode, decode_report, decode_reports, encode, report_of, shard_of

NAMES = st.sampled_from(["alpha-1", "b.2", "x", "", "a b", "../x", "é"])
WORDS = st.text("ab1-./é\x00", max_size=4)
SIZES = st.integers(-1, 1 << 40)
SHARD = st.fixed_dictionaries(
    {"shard": st.builds("{}/{}".format, NAMES, st.sampled_from(["0", "1", "", "x", "99999999"]))},
    optional={
        "replica": NAMES,
        "incarnation": WORDS,
        "attempt": st.integers(0, 3),
        "rank": st.integers(-1, 3) | st.just(1 << 16),
        "world_size": st.integers(0, 3),
        "model": NAMES,
        "fingerprint": WORDS,
        "gpus": st.lists(WORDS, max_size=2),
        "port": st.integers(0, 70000),
        "ports": st.dictionaries(WORDS, st.integers(0, 9), max_size=1),
        "state": st.sampled_from([*SHARD_STATES, "hibernating", ""]),
        "resources": st.fixed_dictionaries({}, optional={"gpu_memory": SIZES, "cpu_cores": SIZES}),
        "compute": st.fixed_dictionaries({}, optional={"device": WORDS, "gpu_bytes": SIZES}),
        "pid": st.integers(0, 9),
        "last_request_age_s": st.floats(0, 9),
        "gave_up": st.booleans(),
        "node": NAMES,
    },
)
GPU = st.fixed_dictionaries(
    {"uuid": WORDS}, optional={"memory": SIZES, "healthy": st.booleans(), "power_w": SIZES}
)
REPORT = st.fixed_dictionaries(
    {"node": st.sampled_from(["box1", "a.b", "x" * 63, "x" * 64, "", "a b"])},
    optional={
        "protocol": st.integers(0, 3),
        "node_id": WORDS,
        "registration": SIZES,
        "epoch_seen": SIZES,
        "leader_uuid": WORDS,
        "labels": st.dictionaries(WORDS, WORDS, max_size=1),
        "fabrics": st.dictionaries(WORDS, st.fixed_dictionaries({"address": WORDS}), max_size=1),
        "capacity": st.fixed_dictionaries({}, optional={"cpu_cores": SIZES, "power_w": SIZES}),
        "gpus": st.lists(GPU, max_size=2),
        "shards": st.lists(SHARD, max_size=3),
        "foreign": st.lists(st.fixed_dictionaries({"pid": st.integers(0, 9)}), max_size=1),
    },
)
ODD = st.sampled_from([None, 7, -1, 1.5, True, "x", "", [], {}, [None], {"a": 1}, "é\ud800"]).map(
    copy.deepcopy
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in it, outermost first."""
    here: list[tuple[Any, Any]]
    if isinstance(value, dict):
        here = [(value, k) for k in value]
    elif isinstance(value, list):
        here = [(value, n) for n in range(len(value))]
    else:
        return []
    return here + [p for c, k in here for p in places(c[k])]


@st.composite
def mangled(draw: st.DrawFn) -> Any:
    """A report in which up to three things are odd, gone, or of a newer version."""
    report = copy.deepcopy(draw(REPORT))
    for _ in range(draw(st.integers(0, 3))):
        found = places(report)
        container, key = found[draw(st.integers(0, len(found) - 1))]
        match draw(st.sampled_from(["odd", "gone", "new", "extra"])):
            case "odd":
                container[key] = draw(ODD)
            case "gone":
                del container[key]
            case _ if isinstance(container, dict):
                container[draw(st.sampled_from(["new", "extra", "watch", "shards", "b"]))] = draw(
                    ODD
                )
            case _:
                container.append(draw(ODD))
        if not places(report):
            break
    return report


def said(read: Any, value: Any) -> Any:
    """What comes of it: a value, or "refused"."""
    try:
        return read(value)
    except (WireError, msgspec.DecodeError):
        return "refused"


def slowly(data: bytes) -> NodeReport:
    return report_of(msgspec.json.decode(data))


@given(mangled())
def test_both_ways_read_the_same(report: Any) -> None:
    data = json.dumps(report).encode()
    fast, slow = said(decode_report, data), said(slowly, data)
    assert fast == slow
    assert said(lambda d: decode(d, NodeReport), data) == slow
    if isinstance(report, dict) and report.get("shards") is None:
        return  # saved in a file, that is of a node which cannot tell yet (A55)
    assert said(decode_reports, b"[" + data + b"]") == (
        (slow,) if not isinstance(slow, str) else slow
    )


@given(mangled())
def test_what_was_read_is_written_and_read_the_same(report: Any) -> None:
    read = said(slowly, json.dumps(report).encode())
    if not isinstance(read, str):
        assert decode_report(encode(read)) == read


@given(mangled())
def test_a_field_of_a_newer_version_changes_nothing_else(report: Any) -> None:
    """And is kept: at the top, and in every shard."""
    plain = said(slowly, json.dumps(report).encode())
    if isinstance(plain, str) or "novelty" in plain.extra:
        return
    shards = report.get("shards") or []
    newer = {**report, "novelty": [1]}
    newer["shards"] = [{**s, "novelty": {"a": 1}} if isinstance(s, dict) else s for s in shards]
    read = decode_report(json.dumps(newer).encode())
    assert read.extra == {**plain.extra, "novelty": [1]}
    for was, now, raw in zip(plain.shards, read.shards, shards, strict=True):
        kept = msgspec.structs.replace(
            now, extra={k: v for k, v in now.extra.items() if k != "novelty"}
        )
        assert kept == was
        if isinstance(raw, dict) and "unreadable" not in (was.error or ""):
            assert now.extra["novelty"] == {"a": 1}


@given(mangled())
def test_an_events_message_reads_its_shards_as_a_report_does(report: Any) -> None:
    plain = said(slowly, json.dumps(report).encode())
    if isinstance(plain, str) or not isinstance(raw := report.get("shards"), list):
        return
    events = decode(json.dumps({"session": "s", "n": 1, "shards": raw}).encode(), Events)
    assert events.shards == plain.shards == tuple(shard_of(s) for s in raw)
