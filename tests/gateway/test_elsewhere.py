"""Replicas on the loopback of another box: that address is this box's own here, and somebody else's engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw import loopback
from llmgw.core.types.routes import RouteModel, RouteReplica, RouteTable
from llmgw.gateway import problems
from llmgw.gateway.elsewhere import reachable
from llmgw.gateway.state import Gateway

HERE, THERE = "4:boot-1:disk-1", "4:boot-2:disk-2"


def replica(name: str, whose: str = "") -> RouteReplica:
    return RouteReplica(replica=name, endpoint="http://127.0.0.1:18000", loopback=whose)


def table(*replicas: RouteReplica, version: int = 1, status: str = "loaded") -> RouteTable:
    return RouteTable(version=version, models={"m": RouteModel(status=status, replicas=replicas)})


def test_what_this_box_reaches_is_left_as_it_is() -> None:
    for told in (table(replica("a", HERE), replica("b")), table()):
        assert reachable(told, HERE) is told
    told = table(replica("a", THERE))
    assert reachable(told, "") is told  # who cannot tell where he is goes by what he is told


@pytest.mark.parametrize(
    ("told", "ours"),
    [
        ("4:boot-1:disk-1", True),
        ("4:another:disk-1", True),  # a sandboxed service in a container: the host's boot id shows
        ("4:boot-1:another", True),  # an image with the host's network
        ("4:boot-1:", True),
        ("5:boot-1:disk-1", False),  # a network of its own
        ("4:another:another", False),
        ("4:another:", False),
    ],
)
def test_whose_loopback_it_is(told: str, *, ours: bool) -> None:
    assert loopback.same(told, HERE) is loopback.same(HERE, told) is ours
    assert (reachable(table(replica("a", told)), HERE).models["m"].status == "loaded") is ours


def test_images_without_an_id_are_not_alike_for_that() -> None:
    assert not loopback.same("4:boot-1:", "4:boot-2:")


def test_of_this_process() -> None:
    namespace, boot, *_ = loopback.here().split(":")
    assert namespace.isdigit()
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert loopback.same(loopback.here(), loopback.here())


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
