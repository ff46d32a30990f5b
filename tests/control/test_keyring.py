"""API keys: shown once, kept as a hash, in the next route table, over kills and a lost inventory (contract/http.md)."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llmgw.control import keys, rows
from llmgw.control.store import edit_keys
from llmgw.errors import LlmgwError, UsageError
from llmgw.wire import encode
from tests.control.bench import Bench, scenario


def sha(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@scenario
async def test_a_key_is_told_once_kept_by_its_hash_and_in_the_table_before_the_answer(
    bench: Bench,
) -> None:
    async with bench.running():
        want = {"name": "open-webui", "models": ["alpha", "nosuch*"], "limits": {"in_flight": 4}}
        said = await bench.post("/api/v1/keys", want)
        secret = said["key"]
        assert secret.startswith("llmgw-")
        assert len(secret) >= 48
        assert said["unmatched"] == ["nosuch*"]
        (routed,) = bench.control.routes.keys
        assert (routed.id, routed.sha256) == ("open-webui", sha(secret))
        assert (routed.models, routed.limits) == (("alpha", "nosuch*"), {"in_flight": 4})
        listed = await bench.get("/api/v1/keys")
        assert [k["id"] for k in listed["keys"]] == ["open-webui"]
        events = str(await bench.get("/api/v1/events"))
        assert "made the API key open-webui" in events
        everywhere = events + str(listed) + str(await bench.get("/api/v1/status"))
        assert secret not in everywhere
        assert sha(secret) not in everywhere
        assert secret.encode() not in bench.control.store.path.read_bytes()
    async with bench.running(crash=True):
        assert list(bench.control.routes.keys) == [routed]
        path = "/api/v1/keys/open-webui/revoke"
        refused = await bench.post(path, status=409)
        assert refused["error"]["code"] == "last_key"
        assert "of a gateway with --insecure" in refused["error"]["message"]
        assert [k.id for k in bench.control.routes.keys] == ["open-webui"]
        said = await bench.post(path, {"last": True})
        assert (said["revoked"], said["left"], said["warning"]) == ("open-webui", 0, None)
        assert len(bench.control.routes.keys) == 0
    async with bench.running(crash=True):
        assert (await bench.get("/api/v1/keys"))["keys"] == []


@scenario
async def test_f14_the_keys_outlive_the_inventory(bench: Bench) -> None:
    """Removed under a running control they are written again; with control away the gateway's table has them."""
    async with bench.running():
        await bench.post("/api/v1/keys", {"name": "ann"})
        routed = bench.control.routes.keys
        bench.control.store.path.unlink()
        await bench.passes(1)
        folder = bench.control.settings.gateway_dir
        folder.mkdir(exist_ok=True)
        (folder / keys.ROUTES).write_bytes(encode(bench.control.routes))
    async with bench.running(crash=True):
        assert bench.control.routes.keys == routed
        path = bench.control.store.path
    path.unlink()
    async with bench.running():
        assert bench.control.routes.keys == routed
        assert "1 API keys are taken from the gateway's last table" in str(
            await bench.get("/api/v1/events")
        )
        await bench.post("/api/v1/keys/ann/revoke", {"last": True})
    async with bench.running():
        assert not bench.control.routes.keys, (
            "revoked is revoked: an old table does not bring it back"
        )


def refused(**want: object) -> LlmgwError:
    with pytest.raises(LlmgwError) as e:
        keys.added({}, keys.Wanted(**({"name": "ann"} | want)), "now")  # type: ignore[arg-type]
    return e.value


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "a" * 64, "a\n"])
def test_a_bad_name_is_refused(name: str) -> None:
    assert "is no name for a key" in refused(name=name).message


def test_what_makes_no_sense_is_refused_with_what_would() -> None:
    assert refused(limits={"in_flight": 0}).message == "limit in_flight 0 is refused"
    assert refused(limits={"tokens": 5}).hint == "one of in_flight, per_minute, from 1 to 1000000"
    assert isinstance(refused(limits={"in_flight": float("nan")}), UsageError)
    assert "may use no model" in refused(models=()).message
    assert refused(rights=("root",)).message == "'root' is no right of a key"
    there, _ = keys.added({}, keys.Wanted("ann"), "2026-11-30T00:00:00Z")
    with pytest.raises(LlmgwError, match="called ann already, made 2026-11-30"):
        keys.added(there, keys.Wanted("ann"), "now")
    with pytest.raises(LlmgwError) as e:
        keys.without(there, "an", last=False)
    assert e.value.message == "there is no API key called an"
    assert e.value.hint == "did you mean ann? `llmgw key list` shows them"


def test_f20_a_row_that_makes_no_sense_costs_itself_only() -> None:
    there, _ = keys.added({}, keys.Wanted("ann"), "now")
    said: list[str] = []
    found = keys.keys_of([("bob", "{"), *keys.rows_of(there), ("eve", "[]")], said.append)
    assert found == there
    assert [line.split()[2] for line in said] == ["bob", "eve"]


def test_an_inventory_of_the_version_before_gets_the_table(tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        rows.MIGRATIONS[0](db)
        db.execute("PRAGMA user_version=1")
    path.chmod(0o600)
    secret = edit_keys(path, lambda there, at: keys.added(there, keys.Wanted("ann"), at))
    (key,) = edit_keys(path, lambda there, _: (there, list(there.values())))
    assert key.sha256 == sha(secret)
