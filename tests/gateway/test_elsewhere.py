"""Replicas on the loopback of another box: that address is this box's own here, and somebody else's engine."""

from __future__ import annotations

from llmgw.core.types.routes import RouteModel, RouteReplica, RouteTable
from llmgw.gateway import problems
from llmgw.gateway.elsewhere import reachable
from llmgw.gateway.state import Gateway

HERE, THERE = "boot-1:4", "boot-2:4"


def replica(name: str, loopback: str = "") -> RouteReplica:
    return RouteReplica(replica=name, endpoint="http://127.0.0.1:18000", loopback=loopback)


def table(*replicas: RouteReplica, version: int = 1, status: str = "loaded") -> RouteTable:
    return RouteTable(version=version, models={"m": RouteModel(status=status, replicas=replicas)})


def test_what_this_box_reaches_is_left_as_it_is() -> None:
    for told in (table(replica("a", HERE), replica("b")), table()):
        assert reachable(told, HERE) is told
    told = table(replica("a", THERE))
    assert reachable(told, "") is told  # who cannot tell where he is goes by what he is told


def test_one_of_another_box_is_left_out() -> None:
    (kept,) = reachable(table(replica("a", THERE), replica("b", HERE)), HERE).models["m"].replicas
    assert kept.replica == "b"
    assert reachable(table(replica("a", THERE), replica("b")), HERE).models["m"].status == "loaded"


def test_with_none_that_it_reaches_a_gateway_says_so_at_once() -> None:
    gateway = Gateway(clock=lambda: 0.0, access=None, open_without_keys=True, here=HERE)
    gateway.apply(table(replica("a", THERE)))
    target = gateway.resolve("m")
    assert target is not None
    assert (target.endpoints, target.gave_up) == ([], True)
    said = problems.failed(target)
    assert (said.status, said.code) == (503, "engine_elsewhere")
    assert "a listens on the loopback of another box only" in said.message
    assert "llmgw stop" in said.hint
    gateway.apply(table(replica("a", HERE), version=2))
    assert (target.ready, target.gave_up) == (1, False)


def test_one_that_is_loading_elsewhere_is_waited_for() -> None:
    told = reachable(table(status="loading"), HERE)
    assert told.models["m"].status == "loading"
