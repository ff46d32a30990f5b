"""The certificate of the agent's API: read again at HUP, nobody cut, control told; a broken one changes nothing."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from llmgw import tls
from scripts.ports import free_port
from tests.agent.rig import Rig, alive, until
from tests.certificates import made, put, shown

TOKEN = "node-token"


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[Rig]:
    used = made(tmp_path / "used")
    rig = Rig(
        tmp_path,
        listen=f"0.0.0.0:{free_port()}",
        token=TOKEN,
        control_token=TOKEN,
        tls_cert=str(used.cert),
        tls_key=str(used.key),
    )
    yield rig
    rig.close()


def files(rig: Rig) -> tls.Pair:
    return tls.Pair(Path(rig.settings["tls_cert"]), Path(rig.settings["tls_key"]))


def port(rig: Rig) -> int:
    return int(rig.settings["listen"].rpartition(":")[2])


def hup(rig: Rig) -> None:
    assert rig.agent is not None
    rig.agent.send_signal(signal.SIGHUP)


def pin(rig: Rig) -> str:
    return asyncio.run(shown(port(rig)))


def test_a_renewed_one_is_shown_and_told_and_nobody_is_cut(wide: Rig, tmp_path: Path) -> None:
    wide.start_agent().registered()
    engine = wide.ready()
    before = tls.pin_of(files(wide).cert)
    assert wide.control.registers[0]["inspect_pin"] == before
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    asks = HTTPSConnection("127.0.0.1", port(wide), timeout=30, context=context)
    asks.request("GET", "/v1/inventory", headers={"authorization": f"Bearer {TOKEN}"})
    assert asks.getresponse().read()
    there = asks.sock
    follows = HTTPSConnection("127.0.0.1", port(wide), timeout=30, context=context)
    path = "/v1/logs/alpha-1/0?follow=1"
    follows.request("GET", path, headers={"authorization": f"Bearer {TOKEN}"})
    stream = follows.getresponse()
    assert stream.status == 200
    put(made(tmp_path / "other", "rsa"), files(wide))
    after = tls.pin_of(files(wide).cert)
    assert pin(wide) == before, "as long as nobody said so"
    hup(wide)
    wide.control.wait(lambda: wide.control.registers[-1]["inspect_pin"] == after, "its pin")
    assert pin(wide) == after
    asks.request("GET", "/v1/inventory", headers={"authorization": f"Bearer {TOKEN}"})
    assert asks.getresponse().read()
    assert asks.sock is there, "on the connection that was there before"
    asks.close()
    with (wide.state_dir / "logs/alpha-1/0.log").open("a") as log:
        log.write("a line after it\n")
    until(lambda: b"a line after it" in stream.readline(), "the followed log")
    follows.close()
    until(lambda: (wide.state_dir / "url").read_text().strip().endswith(f"#{after}"), "its file")
    assert alive(engine["pid"])
    (told,) = wide.control.registers[-1]["shards"]
    assert (told["pid"], told["attempt"]) == (engine["pid"], engine["attempt"])


def test_a_broken_one_changes_nothing_and_is_said(wide: Rig, tmp_path: Path) -> None:
    wide.start_agent().registered()
    before, used = tls.pin_of(files(wide).cert), files(wide)
    until(lambda: pin(wide) == before, "the API")
    whole = used.cert.read_text()
    used.cert.write_text("half of it")
    hup(wide)
    assert "cannot be used" in wide.said("the one in use stays")
    assert pin(wide) == before
    assert len(wide.control.registers) == 1
    used.cert.write_text(whole)
    put(made(tmp_path / "other"), used)
    hup(wide)
    until(lambda: pin(wide) == tls.pin_of(used.cert), "the new one")
