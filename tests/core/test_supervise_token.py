"""Readiness by one real token (`ready.token`): asked for while it comes up, and now and then of what is up (F64)."""

from __future__ import annotations

from typing import Any

from llmgw.core.supervise.health import TOKEN_S
from llmgw.core.types.catalog import Ready
from llmgw.core.types.node import Probe
from tests.core.agent_bench import Bench

SILENT = "no answer in 30 s"


def asking(**k: Any) -> Bench:
    return Bench().ready(ready=Ready(token=True, **k))


def token_asked(b: Bench) -> bool:
    """At the next probe."""
    return b.tick(b.due()).one(Probe).token


def test_f64_what_is_up_makes_a_token_now_and_then_not_at_every_probe() -> None:
    b = asking()
    began_s = b.now
    while not token_asked(b):
        b.probe()
    assert TOKEN_S <= b.now - began_s < TOKEN_S + 3


def test_f64_health_answers_and_no_token_comes_asked_again_at_once_then_unhealthy() -> None:
    """`/health` is 200 all the while: a token that is asked for every 15 s only would never be three of five."""
    b = asking().tick(TOKEN_S)
    assert b.one(Probe).token
    for said in (True, True):
        b.probe("failed", detail=SILENT)
        assert b.record.state == "ready"
        assert token_asked(b) is said
    b.probe("failed", detail=SILENT)
    assert b.record.state == "unhealthy"
    assert b.record.error == f"3 of the last 4 health probes failed: {SILENT}"
    assert token_asked(b)
    while b.record.state == "unhealthy":
        assert not token_asked(b.probe())
    assert b.record.error is None


def test_without_it_no_token_is_ever_asked_for() -> None:
    b = Bench().ready()
    for _ in range(20):
        assert not token_asked(b)
        b.probe()
