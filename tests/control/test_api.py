"""Who may speak to control, what a mistake is answered, and what operators are shown (contract/http.md)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from llmgw.config import Address
from llmgw.control import guard
from llmgw.control.settings import ControlSettings
from llmgw.errors import UsageError
from tests.control.bench import CATALOG, ON_DEMAND, Agent, Bench, engine, scenario

JSON = {"content-type": "application/json"}


async def status_of(
    bench: Bench, method: str = "GET", path: str = "/api/v1/status", **more: Any
) -> int:
    return (await bench.client.request(method, path, **more)).status_code


def error(answer: httpx.Response) -> dict[str, str]:
    found: dict[str, str] = answer.json()["error"]
    assert {"message", "type", "code", "hint"} <= set(found)
    return found


@scenario
async def test_a_page_that_a_browser_has_open_does_not_reach_control(bench: Bench) -> None:
    async with bench.running():
        for host in ("evil.example", "llmgw.evil.example:8801", "", "127.0.0.1.evil.example"):
            assert await status_of(bench, headers={"host": host}) == 403, host
        for host in ("127.0.0.1", "localhost:8801", "[::1]:8801", "10.0.0.7:8801"):
            assert await status_of(bench, headers={"host": host}) == 200, host
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": "none"},
        ):
            assert await status_of(bench, headers=headers) == 403, headers
        same = {"origin": "http://127.0.0.1:8801", "host": "127.0.0.1:8801"}
        assert await status_of(bench, headers={**same, "sec-fetch-site": "same-origin"}) == 200
        assert (
            await bench.client.get("/healthz", headers={"host": "evil.example"})
        ).status_code == 403


@scenario
async def test_only_json_is_read(bench: Bench) -> None:
    async with bench.running() as control:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            answer = await bench.client.post(
                "/api/v1/end", content=b"{}", headers={"content-type": kind}
            )
            assert answer.status_code == 403, kind
        assert not control.state.ending
        told = {"content-type": "application/json; charset=utf-8"}
        assert await status_of(bench, "POST", "/api/v1/adopt", content=b"{}", headers=told) == 200
        assert await status_of(bench, "POST", "/api/v1/adopt") == 200


@scenario
async def test_tokens_open_what_they_are_for(bench: Bench) -> None:
    bench.settings = replace(bench.settings, token="operator", node_token="node")
    paths = {"/api/v1/status": {"operator"}, "/metrics": {"operator"}}
    paths |= {"/gateway/v1/routes?version=0": {"operator", "node"}}
    paths |= {"/agent/v1/commands?session=x": {"operator", "node"}}
    async with bench.running():
        for path, open_to in paths.items():
            for token in ("operator", "node", "wrong", "", "operator2", "Operator"):
                headers = {"authorization": f"Bearer {token}"} if token else {}
                answer = await bench.client.get(path, headers=headers)
                assert (answer.status_code == 401) == (token not in open_to), (path, token)
                if answer.status_code == 401:
                    assert error(answer)["code"] == "unauthorised"
                    assert "LLMGW_" in error(answer)["hint"]
        for path in ("/healthz", "/readyz"):
            assert await status_of(bench, path=path) == 200


@scenario
async def test_the_operators_token_guards_agents_too_where_it_is_the_only_one(bench: Bench) -> None:
    bench.settings = replace(bench.settings, token="operator")
    async with bench.running():
        assert await status_of(bench, path="/gateway/v1/routes?version=0") == 401


def test_a_wider_bind_without_a_token_is_refused(tmp_path: Path) -> None:
    wide = ControlSettings(catalog=tmp_path, state_dir=tmp_path, listen=Address("0.0.0.0", 8801))
    with pytest.raises(UsageError, match="open to the network") as caught:
        wide.check()
    assert "--insecure" in caught.value.hint
    replace(wide, insecure=True).check()
    replace(wide, token="t").check()
    with pytest.raises(UsageError, match="open to the network"):
        replace(wide, node_token="t").check()
    with pytest.raises(UsageError, match="both 127"):
        replace(wide, listen=Address("127.0.0.1", 8800)).check()


@scenario
async def test_mistakes_are_answered_in_one_shape_and_without_a_traceback(bench: Bench) -> None:
    async with bench.running():
        for method, path, status, body in (
            ("GET", "/nothing", 404, b""),
            ("DELETE", "/api/v1/status", 405, b""),
            ("GET", "/gateway/v1/routes?version=x", 400, b""),
            ("POST", "/agent/v1/register", 426, b"{"),
            ("POST", "/agent/v1/register", 426, b"[]"),
            ("POST", "/agent/v1/register", 426, b'{"node": "box1"}'),
            ("POST", "/agent/v1/events", 400, b'{"n": 1}'),
            ("POST", "/agent/v1/events", 410, b'{"session": "x", "n": 1}'),
            ("GET", "/agent/v1/commands?session=x", 410, b""),
            ("POST", "/gateway/v1/demand", 400, b"{}"),
            ("POST", "/api/v1/adopt", 400, b"[" * 100_000),
            ("POST", "/api/v1/nodes/box9/forget", 404, b"{}"),
        ):
            answer = await bench.client.request(method, path, content=body, headers=JSON)
            assert answer.status_code == status, (path, answer.text)
            assert error(answer)["message"]
            assert "Traceback" not in answer.text


@scenario
async def test_a_bug_is_one_line_to_the_asker(bench: Bench) -> None:
    async with bench.running() as control:
        control.notices.append(lambda: str(1 / 0))
        answer = await bench.client.get("/api/v1/status")
        assert answer.status_code == 500
        assert error(answer)["code"] == "bug"
        assert "division" not in answer.text
        control.notices.pop()
        assert await status_of(bench) == 200


@scenario
async def test_a_body_has_a_limit(bench: Bench) -> None:
    async with bench.running():
        big = b" " * (guard.BODY_BYTES + 1)
        assert await status_of(bench, "POST", "/api/v1/adopt", content=big, headers=JSON) == 413


@scenario
async def test_f52_two_agents_of_one_name_are_refused_naming_both(bench: Bench) -> None:
    async with bench.running():
        first = Agent(bench, address="10.0.0.1")
        await first.register()
        for other, code in (
            (Agent(bench, address="10.0.0.2", node_id="another"), 409),
            (Agent(bench, address="10.0.0.3", boot_id="another"), 409),
            (Agent(bench, "box2", address="10.0.0.4", node_id="id-box1"), 409),
        ):
            said = await other.register(status=code)
            assert said["code"] == "duplicate_node"
            assert "10.0.0.1" in said["message"]
            assert other.report.address in said["message"]
        again = Agent(bench, instance="i2")
        await again.register()  # the flock on its state dir proves that the old one ended
        await first.poll(status=410)
        await bench.later(16)
        rebooted = Agent(bench, boot_id="after")
        await rebooted.register()


@scenario
async def test_an_agent_that_is_not_ready_is_told_to_come_again(bench: Bench) -> None:
    async with bench.running() as control:
        said = await Agent(bench, reattached=False).register(status=409)
        assert said["code"] == "not_reattached"
        assert "no node_id" in (await Agent(bench, node_id="").register(status=400))["message"]
        assert control.state.nodes == {}


@scenario
async def test_plan_is_what_a_restart_would_do(bench: Bench) -> None:
    async with bench.running() as control:
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        before = control.state
        plan = await bench.get("/api/v1/plan")
        assert (plan["schema"], plan["source"], plan["exit_code"]) == ("llmgw.plan/1", "control", 0)
        assert [s["verdict"] for s in plan["shards"]] == ["adopt"]
        bench.catalog.write_text(CATALOG.replace("alpha:", "beta:"))
        plan = await bench.get("/api/v1/plan")
        assert [s["verdict"] for s in plan["shards"]] == ["unclaimed"]
        assert (plan["exit_code"], plan["disturbs"]) == (1, 1)
        posted = await bench.post("/api/v1/plan", {"catalog": {"c.yaml": CATALOG}})
        assert posted["exit_code"] == 0
        posted = await bench.post("/api/v1/plan", {"catalog": CATALOG})
        assert posted["exit_code"] == 0
        posted = await bench.post("/api/v1/plan", {"version": 1, "models": {}})
        assert posted["exit_code"] == 1
        for path in (bench.catalog, "catalog.yaml"):
            assert (await bench.get(f"/api/v1/plan?catalog={path}"))["exit_code"] == 1
        for path in ("/etc/passwd", "../catalog.yaml", "sub/../../x"):
            await bench.get(f"/api/v1/plan?catalog={path}", status=403)
        said = await bench.post(
            "/api/v1/plan", {"catalog": {"c.yaml": "version: 1\nmodel: {}"}}, status=400
        )
        assert "c.yaml:2:1" in said["error"]["problems"][0]
        bench.catalog.write_text("models: [")
        plan = await bench.get("/api/v1/plan")
        assert plan["exit_code"] == 1
        assert "last good one" in plan["warnings"][0]
        assert [s["verdict"] for s in plan["shards"]] == ["adopt"]
        assert control.state is before
    plan_offline = await _restart(bench, agent)
    assert plan_offline == {"alpha-1/0": "adopt"}


async def _restart(bench: Bench, agent: Agent) -> dict[str, str]:
    async with bench.running():
        found: dict[str, str] = await agent.register()
        return found


@scenario
async def test_a55_a_silent_node_makes_the_plan_incomplete(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.later(16)
        plan = await bench.get("/api/v1/plan")
        assert (plan["complete"], plan["exit_code"]) == (False, 3)
        assert (await bench.get("/api/v1/plan?allow_partial=1"))["exit_code"] == 0
        await bench.post("/api/v1/nodes/box1/forget")
        assert (await bench.get("/api/v1/plan"))["nodes"] == []


@scenario
async def test_a_connected_node_is_not_forgotten(bench: Bench) -> None:
    async with bench.running():
        await Agent(bench).register()
        said = await bench.post("/api/v1/nodes/box1/forget", status=409)
        assert "stop its agent first" in said["error"]["hint"]


@scenario
async def test_a_start_in_flight_is_no_difference(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        assert (await bench.get("/api/v1/plan"))["exit_code"] == 0
        await agent.start_one("loading")
        assert (await bench.get("/api/v1/plan"))["exit_code"] == 0


@scenario
async def test_adopt_has_every_agent_asked_now(bench: Bench) -> None:
    async with bench.running():
        agent, silent = Agent(bench), Agent(bench, "box2")
        agent.runs(engine())
        await agent.register()
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(bench.post("/api/v1/adopt"))
            (report,) = await agent.poll()
            assert report.__struct_config__.tag == "report"
            agent.runs(engine("alpha-2", port=18001))
            agent.shards.pop(("alpha-1/0", "inc-alpha-1"))
            await agent.register()
            plan = await asked
        assert {s["shard"]: s["verdict"] for s in plan["shards"]} == {
            "alpha-1/0": "forget",
            "alpha-2/0": "adopt",
        }
        assert plan["complete"]
        await silent.register()
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(bench.post("/api/v1/adopt"))
            await agent.poll()
            await agent.register()
            await silent.poll()
            await silent.register()
            plan = await asked
        assert {s["shard"]: s["verdict"] for s in plan["shards"]} == {"alpha-2/0": "keep"}


@scenario
async def test_events_tell_the_story_and_follow_it(bench: Bench) -> None:
    async with bench.running():
        first = (await bench.get("/api/v1/events"))["events"]
        assert [e["kind"] for e in first] == ["leader"]
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        news = (await bench.get(f"/api/v1/events?after={first[-1]['id']}"))["events"]
        assert {"adopt", "replica"} == {e["kind"] for e in news}
        assert "api_key" not in json.dumps(news)
    async with bench.running():
        again = (await bench.get("/api/v1/events"))["events"]
        assert [e["kind"] for e in again][: len(first)] == ["leader"]
        ids = [e["id"] for e in again]
        assert ids == sorted(set(ids))


@scenario
async def test_end_drains_every_engine_and_says_how_many_run(bench: Bench) -> None:
    bench.catalog.write_text(ON_DEMAND)
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine())
        await agent.register()
        await bench.demand(1)
        assert (await bench.post("/api/v1/end"))["engines"] == 1
        await bench.demand(2)
        await bench.later(0)
        await agent.stop_one()
        assert await bench.post("/api/v1/end") == {"engines": 0, "shards": []}
        await bench.later(5)
        assert "start" not in bench.orders(agent)


@scenario
async def test_shutdown_ends_control(bench: Bench) -> None:
    async with bench.running():
        await bench.post("/api/v1/shutdown")
        assert bench.ended.is_set()


@scenario
async def test_secrets_of_engines_go_to_gateways_only(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await agent.register()
        await agent.start_one()
        for path in ("status", "plan", "catalog", "events", "leader"):
            assert "secret-of-the-engine" not in json.dumps(await bench.get(f"/api/v1/{path}"))
        table = await bench.get("/gateway/v1/routes?version=0")
        assert "secret-of-the-engine" not in json.dumps(table)  # this profile sends none upstream


@scenario
async def test_what_there_is_can_be_listed(bench: Bench) -> None:
    async with bench.running():
        paths = (await bench.get("/openapi.json"))["paths"]
        assert {"get", "post"} == set(paths["/api/v1/plan"])
        text = (await bench.client.get("/metrics")).text
        assert "llmgw_leader 1\n" in text
        assert 'llmgw_replicas_ready{model="alpha"} 0\n' in text
        assert (await bench.get("/api/v1/leader"))["epoch"] == 1
        assert (await bench.get("/readyz"))["ready"]
        assert (await bench.get("/api/v1/catalog"))["models"][0]["name"] == "alpha"


@scenario
async def test_a_method_that_is_not_there_is_told_which_are(bench: Bench) -> None:
    """RFC 9110, 15.5.6; of every route of a path, and Starlette knows the first only."""
    async with bench.running():
        answer = await bench.client.request("DELETE", "/api/v1/catalog")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST, PUT")
        answer = await bench.client.request("GET", "/api/v1/models/alpha/wake")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@scenario
async def test_a_word_of_another_type_is_refused_and_not_taken_for_a_no(bench: Bench) -> None:
    """`"dry_run": "true"` once carried out what it asked about."""
    async with bench.running():
        for path, body in (
            ("models/beta/wake", {"dry_run": "true"}),
            ("models/alpha/stop", {"force": 1}),
            ("replicas/alpha/stop", {"force": "yes", "rank": 0}),
            ("replicas/alpha/stop", {"rank": 0.5}),
            ("adopt", {"allow_partial": "1"}),
            ("adopt", {"node": "box1", "pid": 7, "as": "alpha/main", "dry_run": 0}),
            ("catalog", {"confirm": "no"}),
            ("catalog", {"digest": "not-one"}),
            ("pause", {"why": 7}),
            ("confirm", {"digest": 7}),
        ):
            refused = (await bench.post(f"/api/v1/{path}", body, status=400))["error"]
            assert refused["code"] == "usage", path
            assert refused["hint"], path
        for query in (
            "plan?allow_partial=maybe",
            "events?follow=yes",
            "events?after=1_0",
            "events?after=",
        ):
            assert (await bench.get(f"/api/v1/{query}", 400))["error"]["hint"], query
        assert not bench.control.state.woken_s
        assert not bench.control.state.paused
        # what JSON has as one number is one
        await bench.post("/api/v1/replicas/alpha/stop", {"rank": 7.0}, status=404)
