"""Control with TLS as a process: beyond loopback by default, its gateway too, over restarts and changes (http.md)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import IO, Any

import httpx
from typing_extensions import override

from llmgw import config, handover, tls
from llmgw.config import Trust
from llmgw.control.settings import ControlSettings
from llmgw.errors import UnreachableError
from scripts.ports import free_port
from tests.control.box import Box
from tests.control.test_crash import run

TOKEN = {"LLMGW_TOKEN": "op"}


def trust(box: Box) -> Trust:
    return config.pinned((box.state / "url").read_text().split()[0])[1]


async def spoken(box: Box, scheme: str) -> None:
    """From here on the box is asked that way."""
    url = f"{scheme}://127.0.0.1:{box.port}"
    verify = tls.verify(url, trust(box)) if scheme == "https" else False
    headers = {"authorization": "Bearer op"}
    await box.client.aclose()
    box.client = httpx.AsyncClient(
        base_url=url, timeout=10, trust_env=False, verify=verify, headers=headers
    )


class Wide(Box):
    @override
    async def up(self) -> None:
        await self.until((self.state / "url").exists)
        await spoken(self, "https")
        await super().up()


def gateway(box: Box) -> handover.Hello | None:
    try:
        return handover.hello(box.state / "gateway")
    except UnreachableError:
        return None


def test_beyond_loopback_it_is_tls_and_the_same_certificate_after_a_kill(tmp_path: Path) -> None:
    async def story() -> None:
        async with Wide(tmp_path, gateway=True) as box:
            wide = ("--listen", f"0.0.0.0:{box.port}")
            control = box.start(*wide, **TOKEN)
            await box.up()
            assert await box.get("/api/v1/status") is not None
            pins = trust(box).pins
            assert pins == (tls.pin_of(box.state / tls.CERT),)
            # The gateway reaches it by its pin, and so it does after a kill of control.
            first = await box.until(lambda: (g := gateway(box)) and g.table and g)
            assert first.controls == (f"https://127.0.0.1:{box.port}#{pins[0]}",)
            control.kill()
            await box.ended(control)
            control = box.start(*wide, **TOKEN)
            await box.up()
            assert trust(box).pins == pins
            again = await box.until(lambda: (g := gateway(box)) and g.table > first.table and g)
            assert again.pid == first.pid
            # Restarted without TLS: the gateway that cannot reach it any more is taken over from, not left behind.
            control.kill()
            await box.ended(control)
            box.start(**TOKEN)
            await spoken(box, "http")
            await Box.up(box)
            last = await box.until(lambda: (g := gateway(box)) and g.pid != first.pid and g)
            assert last.controls == (f"http://127.0.0.1:{box.port}",)
            await box.until(lambda: (g := gateway(box)) and g.table)

    run(story)


def test_insecure_and_ones_own_certificate(tmp_path: Path) -> None:
    async def story() -> None:
        own = await asyncio.to_thread(tls.own, tmp_path / "own", ["control.lan"])
        async with Wide(tmp_path) as box:
            control = box.start("--listen", f"0.0.0.0:{box.port}", "--insecure", **TOKEN)
            await Box.up(box)
            assert "is plain HTTP" in box.said()
            assert not (box.state / tls.CERT).exists()
            control.kill()
            await box.ended(control)
            (box.state / "url").unlink()
            box.start("--tls-cert", str(own.cert), "--tls-key", str(own.key), **TOKEN)
            await box.up()
            assert trust(box).pins == (tls.pin_of(own.cert),)
            async with httpx.AsyncClient(
                verify=tls.client(Trust(ca=str(own.cert))), trust_env=False
            ) as client:
                answer = await client.get(f"https://localhost:{box.port}/healthz")
            assert answer.json()["ok"] is True
            started = box.start("--tls-cert", str(own.cert), **TOKEN)
            assert await box.ended(started) == 2
            assert "--tls-cert is given without the other one" in box.said()

    run(story)


def test_a_restart_for_the_certificate_is_enough(tmp_path: Path) -> None:
    """Both files removed: another pin, and the gateway of the box follows."""

    async def story() -> None:
        async with Wide(tmp_path, gateway=True) as box:
            wide = ("--listen", f"0.0.0.0:{box.port}")
            control = box.start(*wide, **TOKEN)
            await box.up()
            first = await box.until(lambda: (g := gateway(box)) and g.table and g)
            before = trust(box)
            control.kill()
            await box.ended(control)
            for name in (tls.CERT, tls.KEY, "url"):
                os.unlink(box.state / name)  # noqa: PTH108 - of a few bytes
            box.start(*wide, **TOKEN)
            await box.up()
            assert trust(box) != before
            last = await box.until(lambda: (g := gateway(box)) and g.pid != first.pid and g)
            assert trust(box).pins[0] in last.controls[0]
            await box.until(lambda: (g := gateway(box)) and g.table)

    run(story)


def test_a_gateway_elsewhere_pins_control(tmp_path: Path) -> None:
    """With the wrong pin it serves nobody's table, and says which certificate it met."""

    async def story() -> None:
        async with Wide(tmp_path) as box:
            box.start("--listen", f"0.0.0.0:{box.port}", **TOKEN)
            await box.up()
            (pin,) = trust(box).pins
            for number, given in enumerate((f"sha256:{'0' * 64}", pin)):
                folder, log = tmp_path / f"gw{number}", tmp_path / f"gw{number}.log"
                words = ["gateway", "--control", f"https://127.0.0.1:{box.port}", "--pin", given]
                words += ["--listen", f"127.0.0.1:{free_port()}", "--state-dir", str(folder)]
                with log.open("wb") as file:
                    command = [sys.executable, "-m", "llmgw", *words, "--workers", "1"]
                    env = os.environ | {"LLMGW_NODE_TOKEN": "op"}
                    box.processes.append(_begun(command, file, env))
                wanted = f"its certificate is {pin}, pinned" if number == 0 else "route table"
                await box.until(partial(_says, log, wanted))
                kept = folder / "routes.json"
                if given == pin:
                    await box.until(kept.exists)
                assert kept.exists() == (given == pin)

    run(story)


def _says(log: Path, wanted: str) -> bool:
    return wanted in log.read_text()


def _begun(words: list[str], log: IO[bytes], env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log, env=env)


def test_plain_is_for_loopback_alone(tmp_path: Path) -> None:
    wide = ControlSettings(
        catalog=tmp_path, state_dir=tmp_path, listen=config.Address("0.0.0.0", 1), token="op"
    )
    wide.check()
    assert [a.near.host for a in (wide.listen, config.Address("::", 1))] == ["127.0.0.1", "::1"]


def test_a_standby_asks_its_leader_by_the_pin_of_its_url(tmp_path: Path) -> None:
    """What an operator tells a standby goes on by TLS; the command line of the box asks the leader."""

    async def story() -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        async with Wide(tmp_path / "one") as leader, Wide(tmp_path / "two") as standby:
            standby.state = leader.state
            leader.start("--listen", f"0.0.0.0:{leader.port}", **TOKEN)
            await leader.up()
            standby.start("--standby", "--listen", f"0.0.0.0:{standby.port}", **TOKEN)
            await spoken(standby, "https")
            url = f"https://127.0.0.1:{leader.port}"
            await standby.until(lambda: standby.get("/healthz"))
            told = await standby.client.post("/api/v1/pause", json={"why": "a test"})
            assert told.json()["paused"], told.text
            assert (await leader.get("/api/v1/status"))["paused"]
            found = await leader.until(lambda: _standbys(leader))
            assert (found["url"], found["standbys"][0]["url"]) == (
                url,
                f"https://127.0.0.1:{standby.port}",
            )
            assert (leader.state / "url").read_text().startswith(f"{url}#sha256:")

    run(story)


async def _standbys(box: Box) -> dict[str, Any] | None:
    found: dict[str, Any] = await box.get("/api/v1/leader")
    return found if found["standbys"] else None
