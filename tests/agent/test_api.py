"""The read-only API and /metrics, asked in-process; what they show of a running engine is in test_loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from llmgw import wire
from llmgw.agent import api, metrics
from llmgw.agent.logs import Logs
from llmgw.agent.view import View
from llmgw.core.supervise import initial_state
from llmgw.core.types.messages import Gpu, Start
from llmgw.core.types.node import AgentState, NodeFacts
from llmgw.core.types.record import Record
from tests.agent.test_probe import against, answer

START = Start(
    shard="alpha-1/0",
    replica="alpha-1",
    incarnation="i1",
    model="alpha",
    profile="main",
    port=18000,
)


def state(port: int = 18000) -> AgentState:
    record = Record(start=replace(START, port=port), state="stopped", api_key="engine-key")
    known = initial_state(NodeFacts(node="box1"), (record,))
    return replace(
        known, gpus=(Gpu(uuid="GPU-0", memory_bytes=10, power_w=55.0), Gpu(uuid="GPU-1"))
    )


def ask(folder: Path, path: str, *tokens: str, status: int = 200, **headers: str) -> httpx.Response:
    """One GET of an agent whose logs are below `folder`."""
    view = View(
        state=state,
        controls=lambda: [{"url": "http://c1", "state": "leads"}],
        secrets_of=lambda record: frozenset({record.api_key}),
        metrics=lambda: metrics.exposition(state(), 0.0),
        logs=Logs(folder),
        tokens=frozenset(tokens),
        names=frozenset({"box1.lan"}),
    )

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(api.app(view))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8802"
        ) as client:
            return await client.get(
                path, headers={k.replace("_", "-"): v for k, v in headers.items()}
            )

    got = asyncio.run(get())
    assert got.status_code == status, got.text
    return got


def test_inventory_is_a_report_without_secrets(tmp_path: Path) -> None:
    got = ask(tmp_path, "/v1/inventory")
    report = wire.decode_report(got.content)
    assert (report.node, report.shards[0].shard) == ("box1", "alpha-1/0")
    assert "engine-key" not in got.text
    assert "served_name" not in got.text


def test_status_and_health(tmp_path: Path) -> None:
    got = ask(tmp_path, "/v1/status").json()
    assert got["schema"] == "llmgw.agent-status/1"
    assert got["controls"] == [{"url": "http://c1", "state": "leads"}]
    assert "engine-key" not in str(got)
    assert ask(tmp_path, "/healthz", "t1").json() == {"status": "ok"}


def test_tokens(tmp_path: Path) -> None:
    for wrong in ({}, {"authorization": "Bearer t3"}, {"authorization": "Basic t1"}):
        error = ask(tmp_path, "/v1/inventory", "t1", "t2", status=401, **wrong).json()["error"]
        assert (error["code"], "Bearer" in error["hint"]) == ("unauthorised", True)
    for token in ("t1", "t2"):
        ask(tmp_path, "/v1/inventory", "t1", "t2", authorization=f"Bearer {token}")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8802"}, 200),
        ({"host": "10.0.0.1"}, 200),
        ({"host": "[::1]:8802"}, 200),
        ({"host": "Box1.lan:8802"}, 200),
        ({"host": "evil.example:8802"}, 403),
        ({"host": "::1"}, 200),
        ({"host": ""}, 403),
        ({"origin": "http://127.0.0.1:8802"}, 403),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "none"}, 403),
    ],
)
def test_browsers_stay_out(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    ask(tmp_path, "/v1/inventory", status=status, **headers)


def test_nothing_can_be_changed(tmp_path: Path) -> None:
    assert ask(tmp_path, "/v1/nothing", status=404).json()["error"]["code"] == "not_found"


def test_logs_are_tailed_and_redacted(tmp_path: Path) -> None:
    folder = tmp_path / "logs/alpha-1"
    ask(tmp_path, "/v1/logs/alpha-1/0", status=404)
    folder.mkdir()
    (folder / "0.log").write_text("first line\nkey is engine-key\n")
    (folder / "0.log.1").write_text("before\n")
    assert ask(tmp_path, "/v1/logs/alpha-1/0").text == "first line\nkey is ***\n"
    assert ask(tmp_path, "/v1/logs/alpha-1/0?tail=20").text == "key is ***\n"
    for query in ("previous=1", "previous=1&follow=1"):  # nobody writes to it any more
        assert ask(tmp_path, f"/v1/logs/alpha-1/0?{query}").text == "before\n"
    ask(tmp_path, "/v1/logs/alpha-1/x", status=404)
    ask(tmp_path, "/v1/logs/..%2f..%2fetc/0", status=404)
    for odd in ("x%00", "x" * 5000, ".x", "%1b[2J"):
        ask(tmp_path, f"/v1/logs/{odd}/0", status=404)
    ask(tmp_path, f"/v1/logs/alpha-1/{'9' * 5000}", status=404)
    for odd in ("9" * 5000, "9" * 30, "-1", "%d9%a3", "x"):
        ask(tmp_path, f"/v1/logs/alpha-1/0?tail={odd}")
    ask(tmp_path, "/v1/logs/%2e%2e/0", status=404)


def test_a_log_that_is_not_there_is_said_with_what_was_meant(tmp_path: Path) -> None:
    def said(path: str) -> tuple[str, str]:
        error = ask(tmp_path, f"/v1/logs/{path}", status=404).json()["error"]
        return error["message"], error["hint"]

    assert said("alpha-1/0") == (
        "alpha-1/0 has written nothing yet",
        "`llmgw status` shows what there is; `llmgw events` names those that ended",
    )
    assert said("nope/0") == (
        "there is no model or replica called nope here",
        "known: alpha, alpha-1; `llmgw status` shows what there is; `llmgw events` names those that ended",
    )
    assert said("alpa/0") == (
        "there is no model or replica called alpa here",
        "did you mean alpha? `llmgw status` shows what there is; `llmgw events` names those that ended",
    )
    missing, instead = said("alpha/0")
    assert missing == "there is no replica called alpha here"
    assert instead.startswith("did you mean alpha-1? ")
    missing, instead = said("alpha-1/3")
    assert missing == "there is no shard called alpha-1/3 here"
    assert instead.startswith("did you mean alpha-1/0? ")
    (tmp_path / "logs/alpha-1").mkdir()
    (tmp_path / "logs/alpha-1/0.log").write_text("first line\n")
    assert said("alpha-1/0?previous=1") == (
        "alpha-1/0 has no attempt before this one",
        "`llmgw logs alpha-1/0` shows the one that runs or ran last; `llmgw events` names those that ended",
    )


@pytest.mark.parametrize("size", [4, 7], ids=["a whole line", "half a line: half a secret"])
def test_logs_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(api, "FOLLOW_S", 0.01)
    folder = tmp_path / "logs/alpha-1"
    folder.mkdir(parents=True)
    log = folder / "0.log"
    log.write_text("zero\none\n")
    view: Any = View(
        state=state,
        controls=list,
        secrets_of=lambda record: frozenset({record.api_key}),
        metrics=lambda: None,
        logs=Logs(tmp_path),
        tokens=frozenset(),
        names=frozenset(),
    )

    async def follow() -> list[str]:
        said = []
        async for text in api._follow(view, "alpha-1/0", size):
            said.append(text)
            if text == "one\n":
                with log.open("a") as file:
                    file.write("two engine-key\n")
            elif text == "two ***\n":
                log.rename(folder / "0.log.1")
                log.write_text("next attempt\n")
            else:
                log.unlink()
        return said

    assert asyncio.run(follow()) == ["one\n", "two ***\n", "next attempt\n"]


def test_own_metrics() -> None:
    body, kind = asyncio.run(metrics.exposition(state(), 0.0))
    text = body.decode()
    assert kind.startswith("text/plain")
    assert 'llmgw_shard_state{model="alpha",shard="alpha-1/0",state="stopped"} 1.0' in text
    assert 'llmgw_gpu_memory_bytes{gpu="GPU-0",index="0"} 10.0' in text
    assert text.count("llmgw_gpu_power_watts{") == 1


ENGINE = b"""# HELP llamacpp:requests_processing Requests
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
"""


def test_engines_metrics_are_passed_on_with_labels() -> None:
    async def scrape(port: int) -> str:
        known = state(port)
        records = {k: replace(r, state="ready") for k, r in known.records.items()}
        body, _ = await metrics.exposition(replace(known, records=records), 0.0)
        return body.decode()

    text, asked = against(answer("200 OK", ENGINE), scrape)
    assert 'llamacpp:requests_processing{model="alpha",shard="alpha-1/0"} 2.0' in str(text)
    assert b"Authorization: Bearer engine-key" in asked
    for bad in (answer("501 X", b""), answer("200 OK", b"{not metrics}"), b"SSH\r\n\r\n"):
        text, _ = against(bad, scrape)
        assert "llamacpp" not in str(text)
        assert "llmgw_shard_state" in str(text)
