"""Two controls on a real etcd: a node that joined one is known to the other before and after it leads."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.control import real_etcd
from tests.control.bench import Agent
from tests.control.box import Box
from tests.control.test_crash import run


def test_a_fail_over_shuts_no_node_out_and_lets_none_in_again(tmp_path: Path) -> None:
    async def story() -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        with real_etcd.serving(tmp_path / "etcd") as etcd:
            lease = ("--lease", f"{etcd.spec}?ttl=3s")
            async with Box(tmp_path / "one") as first, Box(tmp_path / "two") as second:
                for box in (first, second):
                    box.client.headers["authorization"] = "Bearer op"
                leader = first.start(*lease, LLMGW_TOKEN="op")
                await first.up()
                second.start(*lease, LLMGW_TOKEN="op")
                words = {n: await made(first, n) for n in ("box1", "box2", "gone")}
                await as_node(first, "box1", words["box1"], 200)
                said = await first.client.post("/api/v1/tokens/gone/revoke", json={})
                assert said.status_code == 200, said.text
                await second.until(lambda: has(second, ["box1", "box2"]))
                await as_node(second, "box1", words["box1"], 200)
                leader.kill()
                await second.up()
                await as_node(second, "box1", words["box1"], 200)
                await as_node(second, "box2", words["box2"], 200)
                await as_node(second, "evil", words["box1"], 409)
                await as_node(second, "box3", words["gone"], 401)
                assert sorted(await names(second)) == ["box1", "box2"]

    run(story)


async def made(box: Box, name: str) -> str:
    said = await box.client.post("/api/v1/tokens", json={"name": name, "new": True})
    assert said.status_code == 200, said.text
    return str(said.json()["token"])


async def as_node(box: Box, node: str, token: str, status: int) -> None:
    box.client.headers["authorization"] = f"Bearer {token}"
    await Agent(box, node).register(status)
    box.client.headers["authorization"] = "Bearer op"


async def names(box: Box) -> list[str]:
    found = await box.get("/api/v1/tokens")
    return [t["name"] for t in found["tokens"]] if found else []


async def has(box: Box, wanted: list[str]) -> bool:
    """Its own file, and not what it was told when it passed the question on."""
    file = box.state / "node-token"
    text = await asyncio.to_thread(file.read_text) if file.exists() else ""
    return all(f'"{name}"' in text for name in wanted) and '"gone"' not in text
