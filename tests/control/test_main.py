"""Control as people run it: signals, its gateway, errors at the start, and an end that leaves the rest running."""

import asyncio
import fcntl
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw import handover
from llmgw.control import keys
from llmgw.control.store import edit_keys
from llmgw.errors import UnreachableError
from scripts.ports import free_port
from tests.control.bench import CATALOG, Agent, engine
from tests.control.box import Box, Process
from tests.control.test_crash import run


async def models(box: Box) -> Any:
    url = f"http://127.0.0.1:{box.gateway_port}/v1/models"
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return [m["id"] for m in (await client.get(url)).json()["data"]]


def status(box: Box, headers: dict[str, str] | None = None) -> int:
    """0 while nobody listens."""
    url = f"http://127.0.0.1:{box.gateway_port}/v1/models"
    try:
        return httpx.get(url, headers=headers, trust_env=False).status_code
    except httpx.TransportError:
        return 0


async def gateway_pid(box: Box) -> int:
    def look() -> int:
        try:
            return handover.hello(box.state / "gateway").pid
        except UnreachableError:
            return 0

    return int(await box.until(look))


def test_term_ends_control_and_leaves_the_gateway(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            process = box.start()
            await box.up()
            pid = await gateway_pid(box)
            agent = Agent(box)
            agent.runs(engine())
            await agent.register()
            process.send_signal(signal.SIGTERM)
            assert await box.ended(process) == 0
            assert "engines=1" in box.said().splitlines()[-1]
            assert f"gateway={pid}" in box.said().splitlines()[-1]
            assert await models(box) == ["alpha"]
            assert sorted(p.name for p in box.state.iterdir()) == [
                "gateway",
                "inventory.db",
                "inventory.db.lock",
                "url",
            ]
            process = box.start()
            await box.up()
            assert await gateway_pid(box) == pid
            assert f"re-adopted, pid {pid}" in box.said()
            process.send_signal(signal.SIGINT)
            assert await box.ended(process) == 130

    run(story)


def test_a_killed_gateway_refuses_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            process = box.start()
            await box.up()
            first = await gateway_pid(box)
            assert await models(box) == ["alpha"]
            os.kill(first, signal.SIGKILL)
            assert await models(box) == ["alpha"]  # it waited in the listener's queue
            second = await gateway_pid(box)
            assert second != first
            process.kill()
            await box.ended(process)
            os.kill(second, signal.SIGKILL)
            box.start()
            await box.up()
            third = await gateway_pid(box)
            assert third not in (first, second)
            assert await models(box) == ["alpha"]

    run(story)


@pytest.mark.parametrize("point", ["before_spawn", "after_spawn"])
def test_killed_around_the_spawn_of_its_gateway(point: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            process = box.start(crash=point)
            assert await box.ended(process) == -9
            box.start()
            await box.up()
            pid = await gateway_pid(box)
            await box.until(lambda: models(box))
            listening = [p for p in _gateways(box) if p != pid]
            assert listening == []

    run(story)


def _gateways(box: Box) -> list[int]:
    mark = os.fsencode(box.state / "gateway")
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_the_gateway_moves_when_its_address_does(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            process = box.start()
            await box.up()
            first = await gateway_pid(box)
            process.send_signal(signal.SIGTERM)
            await box.ended(process)
            box.gateway_port = free_port()
            box.start()
            await box.up()
            await box.until(lambda: first not in _gateways(box))
            assert await models(box) == ["alpha"]

    run(story)


def test_down_ends_control_and_gateway(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            process = box.start()
            await box.up()
            await gateway_pid(box)
            await box.client.post("/api/v1/shutdown", json={})
            assert await box.ended(process) == 0
            await box.until(lambda: _gateways(box) == [])

    run(story)


def test_hup_reloads(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            process = box.start()
            await box.up()
            box.catalog.write_text("models: [")
            process.send_signal(signal.SIGHUP)
            await box.until(lambda: "the catalog is not taken" in box.said())
            box.catalog.write_text(CATALOG.replace("alpha", "beta"))
            process.send_signal(signal.SIGHUP)
            await box.until(lambda: "is in use" in box.said())
            status = await box.get("/api/v1/status")
            assert [m["name"] for m in status["models"]] == ["beta"]

    run(story)


def test_hup_while_it_starts_does_not_end_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            process = box.start()
            await box.until(lambda: "leads with epoch" in box.said())
            process.send_signal(signal.SIGHUP)
            await box.up()
            assert process.poll() is None

    run(story)


def test_what_cannot_start_says_one_clear_thing(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", box.port))
                taken.listen()
                said = await _refused(box)
                assert f"port is in use by pid {os.getpid()}" in said
                assert f"127.0.0.1:{box.port}" in said
                box.gateway_port, box.port = box.port, box.gateway_port
                said = await _refused(box)
                assert "the gateway cannot listen on" in said
                box.gateway_port, box.port = box.port, box.gateway_port
            box.catalog.write_text("models: [")
            assert "catalog.yaml:2:1" in await _refused(
                box, "--inventory", str(tmp_path / "new.db")
            )
            said = await _refused(box, "--inventory", "/proc/nothing/i.db")
            assert "state dir /proc/nothing cannot be used" in said
            assert "open to the network" in await _refused(box, "--listen", "0.0.0.0:0", code=2)

    run(story)


def test_beyond_loopback_the_gateway_wants_an_api_key_first(tmp_path: Path) -> None:
    """A later start does not fail for it: keys may be revoked, or lost with the inventory."""

    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            wide = ("--gateway", f"0.0.0.0:{box.gateway_port}")
            said = await _refused(box, *wide, code=2)
            assert "is open to the network, and there is no API key for clients" in said
            (file,) = re.findall(r"llmgw key add NAME --inventory (\S+)`", said)
            want = keys.Wanted("ann")
            secret = edit_keys(Path(file), lambda there, at: keys.added(there, want, at))
            control = box.start(*wide)
            await box.up()
            bearer = {"authorization": f"Bearer {secret}"}
            await box.until(lambda: status(box) == 401)
            assert status(box, bearer) == 200
            control.kill()
            await box.ended(control)
            assert status(box, bearer) == 200
            os.unlink(file)  # noqa: PTH108 - of a few bytes
            box.start(*wide)
            await box.up()
            assert status(box) == 401
            assert status(box, bearer) == 200

    run(story)


async def _refused(box: Box, *more: str, code: int = 1) -> str:
    before = len(box.said()) if box.log.exists() else 0
    process = box.start(*more)
    assert await box.ended(process) == code, box.said()
    said = box.said()[before:]
    assert "Traceback" not in said
    return said


def test_f17_a_second_control_on_the_inventory_names_the_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            process = box.start()
            await box.up()
            said = await _refused(box)
            assert f"in use by another control, pid {process.pid}" in said

    run(story)


def test_f25_a_control_that_lost_its_lease_ends_and_leaves_the_gateway(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path, gateway=True) as box:
            process = box.start()
            await box.up()
            await gateway_pid(box)
            lock = box.state / "inventory.db.lock"
            lock.unlink()
            with lock.open(
                "w"
            ) as other:  # of one that does not claim the file itself: an older version
                fcntl.flock(other, fcntl.LOCK_EX)
                assert await box.ended(process) == 1
            assert "the lease is lost" in box.said()
            assert "Traceback" not in box.said()
            assert await models(box) == ["alpha"]

    run(story)


def test_long_polls_are_answered_when_control_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with Box(tmp_path) as box:
            process = box.start()
            await box.up()
            agent = Agent(box)
            agent.runs(engine())
            await agent.register()
            version = (await box.get("/gateway/v1/routes?version=0"))["version"]
            before = _connections(process)
            async with asyncio.TaskGroup() as group:
                commands = group.create_task(agent.poll())
                routes = group.create_task(box.client.get(f"/gateway/v1/routes?version={version}"))
                await box.until(lambda: _connections(process) > before)
                process.send_signal(signal.SIGTERM)
                assert await commands == ()
                assert (await routes).status_code == 304
            assert await box.ended(process) == 0

    run(story)


def _connections(process: Process) -> int:
    links = [fd.readlink() for fd in Path(f"/proc/{process.pid}/fd").iterdir()]
    return sum(str(link).startswith("socket:") for link in links)
