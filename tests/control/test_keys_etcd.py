"""API keys of an inventory whose control has its lease in an etcd: the next leader goes by what is there."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec

from llmgw.control import intent, keys
from llmgw.control.lease import noted
from llmgw.control.picture import Moment
from llmgw.control.store import edit_keys
from llmgw.core.types.state import State
from scripts.ports import free_port
from tests.cli.say import llmgw
from tests.control.bench import Bench, scenario
from tests.control.box import Box
from tests.control.test_crash import run
from tests.control.test_standby import with_lease


def test_what_would_be_overruled_is_not_written(tmp_path: Path) -> None:
    """It was told as done, and the next leader let a revoked key in again. A standby's file is no better."""

    async def story() -> None:
        async with Box(tmp_path) as box:
            file = box.state / "inventory.db"
            inventory = ("--inventory", str(file))
            assert llmgw("key", "add", "ann", *inventory).code == 0, "before any control ran"
            process = box.start("--lease", f"etcd://127.0.0.1:{free_port()}")
            await box.until(lambda: noted.elsewhere(file))
            process.send_signal(signal.SIGTERM)
            await box.ended(process)
            for words in (("add", "bob"), ("revoke", "ann", "--yes")):
                said = llmgw("key", *words, *inventory)
                assert (said.code, said.out) == (1, "")
                assert f"the API keys of {file} are kept in etcd too" in said.err
                assert "hint: start control, then the same without --inventory" in said.err
            assert "ann" in llmgw("key", "list", *inventory).out
            process = box.start()
            await box.up()
            process.send_signal(signal.SIGTERM)
            await box.ended(process)
            assert llmgw("key", "add", "bob", *inventory).code == 0

    run(story)


@scenario
async def test_keys_of_a_file_that_the_leader_before_did_not_have_are_told(bench: Bench) -> None:
    """Written there before its first control ran: without a word nobody knew why clients were refused."""
    edit_keys(bench.settings.inventory_path, lambda t, at: keys.added(t, keys.Wanted("ann"), at))
    there, _ = keys.added({}, keys.Wanted("bob"), "now")
    hand = with_lease(bench, held=True)
    hand.intent = intent.written(State(), there, Moment(1.0, 1.0))
    async with bench.running() as control:
        assert set(control.keeper.keys) == {"bob"}
        (event,) = bench.events("keys")
        assert event["why"] == "API keys as the leader before left them: ann goes"
        assert msgspec.json.encode(there["bob"].sha256) not in msgspec.json.encode(event)


@scenario
async def test_what_a_standby_learns_at_its_promotion_is_no_news(bench: Bench) -> None:
    edit_keys(bench.settings.inventory_path, lambda t, at: keys.added(t, keys.Wanted("ann"), at))
    there = edit_keys(bench.settings.inventory_path, lambda t, _: (t, t))
    there, _ = keys.added(there, keys.Wanted("bob"), "now")
    with_lease(bench, held=True).intent = intent.written(State(), there, Moment(1.0, 1.0))
    async with bench.running() as control:
        assert set(control.keeper.keys) == {"ann", "bob"}
        assert not bench.events("keys")
