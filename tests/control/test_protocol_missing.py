"""An older agent registers with one field less at a time: let in, its engine kept, nothing ordered (F55)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.control.bench import CATALOG, Bench, scenario
from tests.wire.recordings import TABLES, VERSIONS, at, path, places, recorded

JSON = {"content-type": "application/json"}
#: Nobody can be told apart without these; the message is refused, what is known of the node stays.
REFUSED = {"node", "node_id", "shards"}
SHARD = "alpha-7k2m/0"
#: What says which engine it is, and how it is: without it another one is meant, or one that is not up.
WHO = {"shards.shard", "shards.model", "shards.state"}


def lacking(plain: Any, place: tuple[Any, ...]) -> Any:
    older = copy.deepcopy(plain)
    del at(older, place[:-1])[place[-1]]
    return older


async def register(bench: Bench, message: Any, status: int) -> dict[str, str]:
    message.pop("registration", None)  # the same moment, told in other words
    answer = await bench.client.post(
        "/agent/v1/register", content=json.dumps(message), headers=JSON
    )
    assert answer.status_code == status, answer.text
    if status != 200:
        return {}
    return {v["shard"]: v["verdict"] for v in answer.json()["verdicts"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_f55_one_field_less(version: str, tmp_path: Path) -> None:
    plain = recorded(version, "register")
    plain["shards"] = [plain["shards"][0] | {"gave_up": False, "profile": "main"}]
    plain["gpus"][0]["healthy"] = True

    @scenario
    async def story(bench: Bench) -> None:
        bench.catalog.write_text(CATALOG.replace("host_memory: 1GiB", "gpus: 1"))
        async with bench.running() as control:
            (profile,) = control.state.catalog.models["alpha"].profiles
            plain["shards"][0]["fingerprint"] = profile.fingerprint_on("box1")
            await register(bench, copy.deepcopy(plain), 200)
            await bench.later(70)
            for place in list(places(plain)):
                if path(place) in WHO or (len(place) > 1 and place[-2] in TABLES):
                    continue
                older = lacking(plain, place)
                if path(place) in REFUSED:
                    await register(bench, older, 400 if path(place) == "node_id" else 426)
                    assert control.state.nodes["box1"].shards, place
                    continue
                for message in (older, copy.deepcopy(plain)):
                    found = await register(bench, message, 200)
                    said = [v.why for v in control.plan.verdicts]
                    assert found in ({SHARD: "keep"}, {SHARD: "adopt"}), (place, said)
                    session = control.sessions.of("box1")
                    assert session is not None
                    assert not session.queue, place
                (replica,) = control.routes.models["alpha"].replicas
                assert replica.endpoint == plain["shards"][0]["endpoint"], place
            assert not bench.events("forget")

    story(tmp_path)
