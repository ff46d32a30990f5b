"""The codec: older and newer peers, torn records, and what may leave a node in which message (F55, F56, A39)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.types.messages import Commands, Events, NodeReport, ShardReport, Start, StopShard
from llmgw.wire import (
    WireError,
    decode,
    decode_report,
    decode_reports,
    encode,
    report_document,
    shards_digest,
)

SHARD = {
    "shard": "alpha-1/0",
    "replica": "alpha-1",
    "incarnation": "i",
    "rank": 0,
    "model": "alpha",
    "state": "ready",
    "resources": {"gpu_memory": 5, "host_memory": 1, "cpu_cores": 1, "power_w": 2},
}
NODE = {"protocol": 1, "node": "box1", "gpus": [{"uuid": "G", "memory": 7}], "shards": [SHARD]}


def report(**change: object) -> NodeReport:
    return decode_report(json.dumps({**NODE, **change}).encode())


def test_names_on_the_wire_are_the_contracts() -> None:
    r = report()
    assert (r.gpus or ())[0].memory_bytes == 7
    assert r.shards[0].resources is not None
    assert r.shards[0].resources.gpu_memory_bytes == 5
    assert json.loads(encode(r))["gpus"][0]["memory"] == 7


def test_f55_missing_and_null_read_as_unknown() -> None:
    old = {"shard": "alpha-1/0", "model": "alpha", "fingerprint": None, "world_size": None}
    shard = report(shards=[old], circuit=None).shards[0]
    assert (shard.replica, shard.rank, shard.world_size) == ("alpha-1", 0, None)
    assert (shard.fingerprint, shard.state) == ("", "unknown")


def test_devices_unknown_is_not_no_devices() -> None:
    assert report(gpus=None).gpus is None
    assert report(gpus=[]).gpus == ()


def test_f56_unknown_fields_are_kept_and_go_back_out() -> None:
    newer = report(rack="r1", shards=[{**SHARD, "speed": {"a": 1}}])
    out = json.loads(encode(newer))
    assert (out["rack"], out["shards"][0]["speed"]) == ("r1", {"a": 1})
    assert decode_report(encode(newer)) == newer


def test_a_state_of_a_newer_agent_is_unknown_and_so_held() -> None:
    assert report(shards=[{**SHARD, "state": "hibernating"}]).shards[0].state == "unknown"


@pytest.mark.parametrize(
    "torn", ["x", 7, None, {}, {"shard": 5}, {**SHARD, "gpus": 3}, {**SHARD, "port": "no"}]
)
def test_a39_one_unreadable_shard_never_spoils_the_report(torn: object) -> None:
    good, bad = report(shards=[SHARD, torn]).shards
    assert good.state == "ready"
    assert bad.state == "unknown"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b'"x"', "want an object, got str"),
        (b"{}", "missing required field `node`"),
        (b'{"node": ""}', "is no name of a node"),
        (b'{"node": 5}', "Expected `str`"),
        (b'{"node": "a", "shards": {}}', "shards must be a list"),
        (b'{"node": "a", "labels": 4}', "Expected `object`"),
    ],
)
def test_a_message_that_is_none_is_refused_with_the_fact(data: bytes, says: str) -> None:
    with pytest.raises(WireError, match=re.escape(says)):
        decode(data, NodeReport)


def test_report_files_hold_one_message_or_a_list() -> None:
    one = json.dumps(NODE).encode()
    assert decode_reports(one) == decode_reports(b"[" + one + b"]")
    assert decode_reports(b"[]") == ()


def test_keys_leave_a_node_only_in_register() -> None:
    r = report(shards=[{**SHARD, "api_key": "s3cret", "served_name": "a"}])
    assert report_document(r)["shards"][0]["api_key"] == "s3cret"
    public = json.dumps(report_document(r, secrets=False))
    assert "s3cret" not in public
    assert "api_key" not in public


def test_commands_are_told_apart_by_kind() -> None:
    commands = Commands(
        commands=(
            Start(shard="a/0", replica="a", incarnation="i", model="m", profile="p"),
            StopShard(shard="a/0", incarnation="i", reason="idle"),
        )
    )
    data = encode(commands)
    assert [c["kind"] for c in json.loads(data)["commands"]] == ["start", "stop"]
    assert decode(data, Commands) == commands
    with pytest.raises(WireError, match="not a Events"):
        decode(b"{}", Events)


def test_the_digest_does_not_depend_on_the_order() -> None:
    a = ShardReport(shard="a/0", incarnation="1", state="ready", port=1)
    b = ShardReport(shard="b/0", incarnation="2", state="ready", port=2)
    assert shards_digest((a, b)) == shards_digest((b, a))
    assert shards_digest((a,)) != shards_digest((b,))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
    )
)
def test_any_json_is_a_report_or_a_refusal(value: object) -> None:
    data = json.dumps({"node": "a", "shards": [value], "gpus": None, "labels": {}}).encode()
    assert len(decode_report(data).shards) == 1
    try:
        decode_report(json.dumps(value).encode())
    except WireError as e:
        assert e.message  # noqa: PT017 - either way is right, another exception is not


@pytest.mark.parametrize(
    ("devices", "gpus", "foreign"),
    [
        ({"gpus": [{"index": 0}]}, None, 1),
        ({"gpus": 7}, None, 1),
        ({"foreign": [{"gpu": "g"}]}, 1, 0),
        ({"gpus": [{}], "foreign": "x"}, None, 0),
    ],
)
def test_f59_devices_that_cannot_be_read_are_unknown_and_cost_no_engine_its_news(
    devices: dict[str, Any], gpus: int | None, foreign: int
) -> None:
    told = {
        "node": "box1",
        "gpus": [{"uuid": "GPU-0"}],
        "foreign": [{"pid": 7}],
        "shards": [{"shard": "a-1/0"}],
    } | devices
    report = decode_report(json.dumps(told).encode())
    assert (report.gpus and len(report.gpus), len(report.foreign)) == (gpus, foreign)
    assert [s.shard for s in report.shards] == ["a-1/0"]


def test_what_is_null_in_events_was_not_said() -> None:
    said = decode(b'{"session": "s", "n": 1, "shards": null, "refused": null, "gpus": 3}', Events)
    assert (said.shards, said.refused, said.gpus) == ((), (), None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("incarnation", "a\x1b[2J"),
        ("model", "a\0"),
        ("profile", "a\n"),
        ("port", 65536),
        ("port", -1),
        ("ports", {"group": 70000}),
        ("attempt", 10**40),
        ("attempt", -1),
        ("world_size", 0),
        ("rank", -1),
        ("rank", 1 << 16),
    ],
)
def test_a_shard_that_says_the_impossible_is_held_as_unreadable(field: str, value: Any) -> None:
    """A39: and its neighbours are read; what no terminal prints comes to none."""
    odd = {"shard": "a-1/0", field: value}
    report = decode_report(
        json.dumps({"node": "box1", "shards": [odd, {"shard": "b-1/0"}]}).encode()
    )
    assert [(s.shard, s.state, bool(s.error)) for s in report.shards] == [
        ("a-1/0", "unknown", True),
        ("b-1/0", "unknown", False),
    ]
    assert report.shards[0].error is not None
    assert report.shards[0].error.isprintable()


def test_the_name_of_an_unreadable_shard_is_printable() -> None:
    (odd,) = decode_report(b'{"node": "box1", "shards": [{"shard": "\\u001b[2J/0"}]}').shards
    assert (odd.shard, odd.state) == ("?[2J/0", "unknown")


def test_a39_a30_what_is_legible_of_a_bad_record_counts() -> None:
    """Its GPU was given out again, and its model started a second time, for a port that is no number."""
    odd = {
        "shard": "alpha-1/0",
        "model": "alpha",
        "incarnation": "i",
        "gpus": ["GPU-0"],
        "port": "x",
        "state": "ready",
    }
    (held,) = decode_report(json.dumps({"node": "box1", "shards": [odd]}).encode()).shards
    assert (held.state, held.model, held.incarnation) == ("unknown", "alpha", "i")
    assert (held.gpus, held.port) == (("GPU-0",), 0)
    assert "port" in (held.error or "")


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.500000Z"),
        ("2026-01-01T00:00:00", ""),
        ("yesterday", ""),
        ("", ""),
    ],
)
def test_a25_a_time_that_is_none_is_unknown(said: str, read: str) -> None:
    told = {"node": "box1", "shards": [{"shard": "a-1/0", "started_at": said}]}
    (shard,) = decode_report(json.dumps(told).encode()).shards
    assert shard.started_at == read


@pytest.mark.parametrize("shards", ["0", "false", '""', "{}"])
def test_events_whose_shards_are_no_list_are_refused(shards: str) -> None:
    with pytest.raises(WireError, match="shards are a list"):
        decode(f'{{"session": "s", "n": 1, "shards": {shards}}}'.encode(), Events)


@pytest.mark.parametrize("shards", ["", ', "shards": null'])
def test_a42_an_inventory_that_does_not_say_what_runs_is_refused(shards: str) -> None:
    with pytest.raises(WireError, match="shards must be a list, got none"):
        decode_report(f'{{"node": "box1"{shards}}}'.encode())


def test_a55_a_saved_inventory_that_does_not_say_what_runs_is_of_a_silent_node() -> None:
    (report,) = decode_reports(b'{"node": "box1"}')
    assert (report.reattached, report.shards) == (False, ())
