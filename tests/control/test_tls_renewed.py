"""A renewed certificate: taken at HUP and when its files are others, with nobody cut; a broken one changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmgw import certificate, config, tls
from llmgw.certificate import Certificate
from llmgw.control.story import Story
from llmgw.errors import UsageError
from tests.certificates import made, put, shown
from tests.control.test_crash import run
from tests.control.test_tls import TOKEN, Wide, gateway, spoken, trust


def test_at_hup_nobody_is_cut_and_all_who_pin_it_follow(tmp_path: Path) -> None:
    async def story() -> None:
        used, other = made(tmp_path / "used"), made(tmp_path / "other", "rsa")
        async with Wide(tmp_path, gateway=True) as box:
            words = ["--listen", f"0.0.0.0:{box.port}"]
            words += ["--tls-cert", str(used.cert), "--tls-key", str(used.key)]
            control = box.start(*words, **TOKEN)
            await box.up()
            before = tls.pin_of(used.cert)
            assert await shown(box.port) == before
            first = await box.until(lambda: (g := gateway(box)) and g.table and g)
            async with box.client.stream("GET", "/api/v1/events?follow=1") as stream:
                lines = stream.aiter_lines()
                put(other, used)
                assert await shown(box.port) == before, "as long as nobody said so"
                control.send_signal(signal.SIGHUP)
                after = tls.pin_of(other.cert)
                await box.until(lambda: _is(box.port, after))
                async for line in lines:  # on the connection that was there before
                    if "certificate" in line:
                        assert before in line
                        assert after in line
                        break
            # The command line of this box, the next box's line, and the gateway go by the new one.
            await box.until(lambda: trust(box).pins == (after,))
            await spoken(box, "https")
            line = (await box.client.post("/api/v1/tokens", json={})).json()
            assert {config.pinned(url)[1].pins for url in line["urls"]} == {(after,)}
            told = (await box.client.post("/api/v1/pause", json={"why": "a change"})).json()
            assert told["paused"]
            await box.until(lambda: (g := gateway(box)) and g.table > first.table and g)
            found = gateway(box)
            assert found is not None
            assert found.pid == first.pid
            # Also where it has to connect anew: control was killed, and its port is the same.
            control.kill()
            await box.ended(control)
            box.start(*words, **TOKEN)
            await box.up()
            await box.until(lambda: (g := gateway(box)) and g.table > found.table and g)

    run(story)


async def _is(port: int, pin: str) -> bool:
    return await shown(port) == pin


@pytest.mark.parametrize("broken", ["not PEM", "another's key", "gone", "unreadable"])
def test_one_that_cannot_be_used_changes_nothing_and_is_said(tmp_path: Path, broken: str) -> None:
    async def story() -> None:
        used, other = made(tmp_path / "used"), made(tmp_path / "other")
        async with Wide(tmp_path) as box:
            words = ("--tls-cert", str(used.cert), "--tls-key", str(used.key))
            control = box.start(*words, **TOKEN)
            await box.up()
            before = await shown(box.port)
            if broken == "not PEM":
                used.cert.write_text("half of it")
            elif broken == "another's key":
                shutil.copy(other.cert, used.cert)
            elif broken == "gone":
                used.key.unlink()
            else:
                used.key.unlink()
                used.key.mkdir()
            control.send_signal(signal.SIGHUP)
            warnings = await box.until(lambda: _warned(box, "cannot be used"))
            assert "the one in use stays" in warnings
            assert await shown(box.port) == before
            assert box.said().count("the one in use stays") == 1
            if broken == "unreadable":
                used.key.rmdir()
            put(other, used)
            control.send_signal(signal.SIGHUP)
            await box.until(lambda: _is(box.port, tls.pin_of(other.cert)))
            await spoken(box, "https")
            await box.until(lambda: _quiet(box))

    run(story)


async def _warned(box: Wide, words: str) -> str:
    found: Any = await box.get("/api/v1/status")
    return next((w for w in found["warnings"] if words in w), "") if found else ""


async def _quiet(box: Wide) -> bool:
    found = await box.get("/api/v1/status")
    return bool(found) and not any("certificate" in w for w in found["warnings"])


def test_files_that_are_others_are_taken_without_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal that forgot the HUP. Files that are gone are no renewal: a wiped folder must not be one."""

    async def story() -> None:
        monkeypatch.setattr(certificate, "LOOK_S", 0.01)
        used, other = made(tmp_path / "used"), made(tmp_path / "other")
        renewed = asyncio.Event()
        ours = Certificate(used, partial(Story().tell, "certificate"))
        ours.renewed.append(renewed.set)
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            looking = group.create_task(ours.run())
            await asyncio.sleep(0.05)
            used.cert.unlink()
            await asyncio.sleep(0.05)
            assert (ours.said(), renewed.is_set()) == ("", False)
            put(other, used)
            await renewed.wait()
            looking.cancel()
        assert ours.pin == tls.pin_of(other.cert)

    asyncio.run(story())


def test_a_pair_is_in_use_whole_or_not_at_all(tmp_path: Path) -> None:
    """Loaded into the context that serves, a certificate without its key would have ended TLS."""
    used, other = made(tmp_path / "used"), made(tmp_path / "other")
    served = tls.Served(used)
    seen = [served.other]
    shutil.copy(other.cert, used.cert)
    os.utime(used.cert, (1, 1))
    seen.append(served.other)
    with pytest.raises(UsageError, match="KEY_VALUES_MISMATCH"):
        served.renew()
    seen.append(served.other)
    assert served.pin != tls.pin_of(other.cert)
    put(other, used)
    assert [*seen, served.other] == [False, True, False, True], "each is looked at once"
    served.renew()
    assert served.pin == tls.pin_of(other.cert)
