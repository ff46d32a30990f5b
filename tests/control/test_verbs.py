"""An operator's word to the whole fleet: what it holds back, that it lasts, and that it is seen (A48, A49)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from llmgw.core import learn
from llmgw.core.names import plain
from llmgw.core.types.messages import DrainShard, ShardReport, Start, StopShard
from llmgw.core.types.state import Failure
from tests.control.bench import CATALOG, Agent, Bench, engine, scenario, started

OTHER = f"sha256:{'0' * 64}"


def strangers(count: int) -> list[ShardReport]:
    """Running engines that no catalog here claims."""
    return [engine(f"gone-{n}", model="gone", port=18100 + n) for n in range(count)]


async def crowd(bench: Bench, count: int = 4, **report: Any) -> Agent:
    """A node with one wanted engine and so many that nothing claims."""
    agent = Agent(bench, **report)
    for shard in (engine(), *strangers(count)):
        agent.runs(shard)
    await agent.register()
    return agent


def drained(bench: Bench, agent: Agent) -> set[str]:
    """Told to go; to end at once, where nobody is on it by then."""
    queue = bench.control.sessions.get(agent.session).queue.values()
    return {c.shard for c in queue if isinstance(c, DrainShard | StopShard)}


@scenario
async def test_a48_a_pause_holds_ends_back_over_restarts_until_it_is_over(bench: Bench) -> None:
    async with bench.running():
        agent = await crowd(bench, 2)
        said = await bench.post("/api/v1/pause", {"why": "moving\nthe switch"})
        now = bench.control.now()
        stamp = now.iso(now.mono)[:19]
        assert said == {
            "paused": f"since {stamp}Z by the operator: moving the switch",
            "warning": None,
        }
        assert (await bench.post("/api/v1/pause"))["paused"] == said["paused"]
        await bench.passes(70, agent)
        assert bench.orders(agent) == []
    async with bench.running(crash=True):
        await agent.register()
        await bench.passes(70, agent)
        assert bench.orders(agent) == []
        status = await bench.get("/api/v1/status")
        assert status["paused"] == said["paused"]
        assert status["blocked"] is None
        assert {s["shard"]: (s["at"], s["withheld"]) for s in status["stops_pending"]} == {
            f"gone-{n}/0": (None, f"paused {said['paused']}") for n in (0, 1)
        }
        plan = await bench.get("/api/v1/plan")
        assert {a["withheld"] for a in plan["actions"]} == {f"paused {said['paused']}"}
        assert plan["exit_code"] == 1
        assert "llmgw_paused 1\n" in (await bench.client.get("/metrics")).text
        resumed = await bench.post("/api/v1/resume")
        assert (resumed["paused"], resumed["was"]) == (None, said["paused"])
        await bench.later(1)
        assert drained(bench, agent) == {"gone-0/0", "gone-1/0"}
        assert (await bench.post("/api/v1/resume"))["was"] is None
        assert (await bench.get("/api/v1/status"))["paused"] is None
        kinds = [e["kind"] for e in bench.control.story.events]
        assert (kinds.count("paused"), kinds.count("resumed")) == (1, 1)


@scenario
async def test_a48_an_announced_stop_has_its_time_also_while_it_is_held_back(bench: Bench) -> None:
    """In `status` and in the event, with the reason; the time is the same one in each."""
    async with bench.running():
        agent = await crowd(bench)
        now = bench.control.now()
        due = now.iso(now.mono + 60)
        for held in (False, True):
            if held:
                await bench.post("/api/v1/pause")
            pending = (await bench.get("/api/v1/status"))["stops_pending"]
            assert {(s["reason"], s["at"]) for s in pending} == {("model_removed", due)}
            assert {bool(s["withheld"]) for s in pending} == {True}  # four of five: blocked
        told = [e for e in bench.events("stop") if e["why"].startswith("will be stopped")]
        assert {(e["reason"], e["due"]) for e in told} == {("model_removed", due)}
        assert len(told) == 4
        assert bench.orders(agent) == []


@scenario
async def test_a48_a_pause_holds_up_neither_starts_nor_what_was_asked_for(bench: Bench) -> None:
    async with bench.running():
        agent = Agent(bench)
        await bench.post("/api/v1/pause")
        await agent.register()
        shard = await agent.start_one()
        await bench.post(f"/api/v1/replicas/{shard.replica}/stop")
        assert shard.shard in drained(bench, agent)


@scenario
async def test_a49_what_nobody_asked_for_waits_for_a_yes_to_what_was_shown(bench: Bench) -> None:
    async with bench.running():
        agent = await crowd(bench)
        await bench.passes(70, agent)
        assert bench.orders(agent) == []
        status = await bench.get("/api/v1/status")
        digest = status["confirm"]
        assert status["blocked"] == (
            "would end 4 of 5 running replicas in one pass, which nobody asked for (limit 2): gone; "
            f"llmgw confirm {digest} lets it happen"
        )
        assert "llmgw_blocked 1\n" in (await bench.client.get("/metrics")).text
        assert (await bench.get("/readyz"))["ready"]
        plan = await bench.get("/api/v1/plan")
        assert plan["blocked"]["digest"] == digest
        assert plan["blocked"]["engines"] == [f"gone-{n}" for n in range(4)]
        refused = (await bench.post("/api/v1/confirm", {"digest": OTHER}, status=409))["error"]
        assert refused["code"] == "other_digest"
        assert digest in refused["message"]
        for odd in ("", "sha256:1", f"{digest}\n", digest.upper()):
            await bench.post("/api/v1/confirm", {"digest": odd}, status=400)
        assert bench.orders(agent) == []
        said = await bench.post("/api/v1/confirm", {"digest": digest})
        assert said["engines"] == plan["blocked"]["engines"]
        assert drained(bench, agent) == {f"gone-{n}/0" for n in range(4)}
        assert (await bench.get("/api/v1/status"))["blocked"] is None
        told = {k: len(bench.events(k)) for k in ("blocked", "confirmed", "released")}
        assert told == {"blocked": 1, "confirmed": 1, "released": 1}
        again = (await bench.post("/api/v1/confirm", {"digest": digest}, status=409))["error"]
        assert "nothing is blocked" in again["message"]


@scenario
async def test_a49_a_yes_lasts_over_a_restart_and_covers_only_what_was_shown(bench: Bench) -> None:
    async with bench.running():
        agent = await crowd(bench)
        digest = (await bench.get("/api/v1/status"))["confirm"]
        await bench.post("/api/v1/confirm", {"digest": digest})
        assert bench.control.state.confirmed == {f"inc-gone-{n}" for n in range(4)}
    async with bench.running(crash=True):
        await agent.register()
        assert (await bench.get("/api/v1/status"))["blocked"] is None
        for n in range(10, 13):
            agent.runs(engine(f"gone-{n}", model="gone", port=18100 + n))
        await agent.register()
        await bench.passes(70, agent)
        assert drained(bench, agent) == {f"gone-{n}/0" for n in range(4)}
        assert "would end 3 of 8" in (await bench.get("/api/v1/status"))["blocked"]


@scenario
async def test_a49_the_digest_of_the_dry_run_is_a_yes_too(bench: Bench) -> None:
    async with bench.running():
        agent = await crowd(bench)
        shown = (await bench.get("/api/v1/plan"))["digest"]
        agent.runs(engine("gone-9", model="gone", port=18109))
        await agent.register()
        await bench.post("/api/v1/confirm", {"digest": shown}, status=409)
        shown = (await bench.get("/api/v1/plan"))["digest"]
        said = await bench.post("/api/v1/confirm", {"digest": shown})
        assert said["engines"] == ["gone-0", "gone-1", "gone-2", "gone-3", "gone-9"]
        await bench.passes(70, agent)
        assert len(drained(bench, agent)) == 5


@scenario
async def test_a46_there_is_nothing_to_confirm_while_settling(bench: Bench) -> None:
    async with bench.running():
        await crowd(bench)
    async with bench.running():
        said = (await bench.post("/api/v1/confirm", {"digest": OTHER}, status=409))["error"]
        assert "settling is not over" in said["message"]


@scenario
async def test_a_name_that_is_none_is_answered_with_the_nearest(bench: Bench) -> None:
    async with bench.running():
        await crowd(bench, 1)
        for path, near in (
            ("models/alhpa/stop", "alpha"),
            ("models/frist/stop", "first"),
            ("replicas/alpha-2/stop", "alpha-1"),
            ("replicas/alhpa/clear", "alpha"),
            ("nodes/bxo1/forget", "box1"),
        ):
            said = (await bench.post(f"/api/v1/{path}", status=404))["error"]
            assert said["hint"] == f"did you mean {near}? `llmgw status` shows what there is", path


@scenario
async def test_f15_a_control_that_does_not_lead_takes_no_orders(bench: Bench) -> None:
    """It could neither act on them nor keep them."""
    async with bench.running() as control:
        await crowd(bench)
        control.follows = "no epoch can be stored"
        for path, body in (
            ("pause", {}),
            ("resume", {}),
            ("confirm", {"digest": OTHER}),
            ("models/alpha/stop", {}),
            ("replicas/alpha-1/stop", {}),
            ("replicas/alpha-1/stop", {"force": True, "rank": 0}),
        ):
            control.leading = False
            said = (await bench.post(f"/api/v1/{path}", body, status=503))["error"]
            assert (said["code"], said["message"]) == (
                "not_leading",
                "control does not lead now: no epoch can be stored",
            )
            control.follows = "no epoch can be stored"


@scenario
async def test_f15_a_word_that_cannot_be_kept_says_so(bench: Bench) -> None:
    async with bench.running() as control:
        await crowd(bench, 1)
        control.keeper.problem = "history is not kept: disk full"
        control.keeper._again_s = bench.clock.now + 60
        assert (await bench.post("/api/v1/pause"))["warning"] == "history is not kept: disk full"


@scenario
async def test_end_lasts_while_the_lead_is_lost_and_taken_again(bench: Bench) -> None:
    """`llmgw down --engines` waits for the end of engines that a new term would have started again."""
    async with bench.running() as control:
        await crowd(bench, 1)
        await bench.post("/api/v1/end")
        control.leading = False
        await bench.later(1)
        assert control.leading
        assert control.state.ending


@scenario
async def test_a49_yes_at_catalog_apply_is_for_what_its_plan_showed(bench: Bench) -> None:
    """SIGHUP and a plain reload are nobody's yes."""
    gone = CATALOG.partition("models:\n")[2].replace("alpha", "gone").replace("min: 1", "min: 4")
    bench.catalog.write_text(CATALOG + gone.replace("[first]", "[]"))
    async with bench.running():
        agent = await crowd(bench)
        assert (await bench.get("/api/v1/plan"))["exit_code"] == 0
        bench.catalog.write_text(CATALOG)
        shown = (await bench.get("/api/v1/plan"))["digest"]
        refused = await bench.post(
            "/api/v1/catalog", {"confirm": True, "digest": OTHER}, status=409
        )
        assert refused["error"]["code"] == "other_digest"
        assert "gone" in bench.control.state.catalog.models
        await bench.post("/api/v1/catalog", {"confirm": True}, status=400)
        await bench.post("/api/v1/catalog", {"confirm": True, "digest": shown})
        assert bench.control.state.confirmed >= {f"inc-gone-{n}" for n in range(4)}
        assert (await bench.get("/api/v1/status"))["blocked"] is None
        await bench.passes(70, agent)
        assert len(drained(bench, agent)) == 4


@scenario
async def test_a_name_with_a_slash_in_it_is_a_name(bench: Bench) -> None:
    async with bench.running():
        await crowd(bench, 1)
        for name, said in (
            ("m1%2Fx", "m1/x"),
            ("..%2F..", "../.."),
            ("a%1B%5B2J%0Ab", "a [2J b"),
            ("x" * 90, "x" * 79 + "…"),
        ):
            for path, what in (
                (f"replicas/{name}/stop", "model, replica or shard"),
                (f"models/{name}/stop", "model, replica or shard"),
                (f"replicas/{name}/clear", "model or replica"),
                (f"nodes/{name}/forget", "node"),
            ):
                error = (await bench.post(f"/api/v1/{path}", status=404))["error"]
                assert error["message"] == f"there is no {what} called {said}", path
        await bench.post("/api/v1/replicas//clear", status=400)
        await bench.post("/api/v1/nodes/%0A/forget", status=400)
        assert set(bench.control.state.nodes) == {"box1"}


@scenario
async def test_a_list_of_names_says_that_it_is_cut(bench: Bench) -> None:
    async with bench.running():
        for count, cut in ((1, False), (30, True)):
            await crowd(bench, count)
            hint = (await bench.post("/api/v1/replicas/zzz/stop", status=404))["error"]["hint"]
            assert hint.startswith("known: alpha, ")
            assert ("…; `llmgw status`" in hint) is cut


def test_f15_an_operators_text_is_one_line_without_orders_to_a_terminal() -> None:
    assert plain("a\x1b[31mred\r\n\tb\u202ec\x00", 200) == "a [31mred b c"
    assert plain("x" * 200, 200) == "x" * 200
    assert plain("x" * 201, 200) == "x" * 199 + "…"


@scenario
async def test_a48_a_yes_during_a_pause_is_told_so(bench: Bench) -> None:
    async with bench.running():
        agent = await crowd(bench)
        said = await bench.post("/api/v1/pause", {"why": "a\x1b[2Jb" + "c" * 300})
        assert "\x1b" not in said["paused"]
        assert said["paused"].endswith("c…")
        digest = (await bench.get("/api/v1/plan"))["digest"]
        confirmed = await bench.post("/api/v1/catalog", {"confirm": True, "digest": digest})
        assert confirmed["paused"] == said["paused"]
        await bench.passes(70, agent)
        assert bench.orders(agent) == []
        await bench.post("/api/v1/resume")
        assert (await bench.post("/api/v1/catalog"))["paused"] is None
        await bench.later(1)
        assert drained(bench, agent) == {f"gone-{n}/0" for n in range(4)}  # the yes still counts


KNOWN = {"in_catalog": True}


@scenario
async def test_what_is_cleared_of_a_model_that_the_catalog_has_no_more_may_not_start(
    bench: Bench,
) -> None:
    """Its failed remains go with the catalog that named it; what is known of it goes by `clear`, by its name."""
    async with bench.running() as control:
        agent = Agent(bench)
        await agent.register()
        (start,) = [c for c in await agent.poll() if isinstance(c, Start)]
        lost = {"state": "failed", "error": "exit 1", "gave_up": True, "endpoint": ""}
        await agent.tell(replace(started(start), **lost))
        await bench.later(1)
        assert "forget" not in bench.orders(agent), "people are to see it"
        failures = control.state.failures["alpha"]
        bench.catalog.write_text(bench.catalog.read_text().replace("alpha", "other"))
        await bench.post("/api/v1/catalog")
        await bench.later(1)
        assert "forget" in bench.orders(agent)
        assert control.state.failures == {"alpha": failures}
        said = await bench.post("/api/v1/replicas/alpha/clear")
        assert said == {"model": "alpha", "failures": 1, "learned": 0, "in_catalog": False}
        (event,) = bench.events("clear")
        assert event["why"].endswith("alpha: it is not in the catalog any more; forgotten")
        assert control.state.failures == {}
        await bench.post("/api/v1/replicas/alpha-gone/clear", status=404)


@scenario
async def test_a67_clear_says_how_much_there_was_to_forget(bench: Bench) -> None:
    async with bench.running() as control:
        await crowd(bench, 1)
        failure = Failure("inc-x", "main", bench.clock.now, "exit 1")
        for failures in ((), (failure, failure)):
            control.state = replace(control.state, failures={"alpha": failures, "gone": (failure,)})
            said = await bench.post("/api/v1/replicas/first/clear")
            assert said == {"model": "alpha", "failures": len(failures), "learned": 0} | KNOWN
            assert len(bench.events("clear")) == bool(failures)
        assert list(control.state.failures) == ["gone"]


@scenario
async def test_a62_clear_forgets_what_runs_held_though_none_has_failed(bench: Bench) -> None:
    """Learned on a larger card it fits nowhere for ever, and what it was told to do about it did nothing."""
    async with bench.running() as control:
        await crowd(bench, 1)
        (name, *_) = learn.fingerprints(control.state, "alpha")
        control.state = replace(control.state, learned={name: 30 << 30, "1:other": 1})
        said = await bench.post("/api/v1/replicas/alpha/clear")
        assert said == {"model": "alpha", "failures": 0, "learned": 30 << 30} | KNOWN
        assert control.state.learned == {"1:other": 1}
        assert len(bench.events("clear")) == 1


@scenario
async def test_a43_f67_what_does_not_end_is_a_warning_with_the_way_out(bench: Bench) -> None:
    """Else GPUs are held by what serves nobody, and only the wide table says why."""
    why = (
        "stuck: pids 9 are still there 10 s after SIGKILL; llmgw stop --force alpha-1/0 frees them"
    )
    async with bench.running():
        agent = Agent(bench)
        agent.runs(engine(state="stopping", desired="stopped", error=why))
        await agent.register()
        assert (
            f"alpha-1/0 on box1 does not end: {why}"
            in (await bench.get("/api/v1/status"))["warnings"]
        )
