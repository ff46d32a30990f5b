"""What a gateway process is sent by mistake: signals that mean nothing to it, words nobody understands."""

import asyncio
import signal
from pathlib import Path

from llmgw import handover
from tests.gateway.rig import run
from tests.gateway.test_main import process


def test_hup_cuts_no_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        with process(tmp_path / "s", listen="127.0.0.1:0") as gateway:
            await gateway.port()
            gateway.popen.send_signal(signal.SIGHUP)
            await gateway.event("nothing to reload here")
            gateway.popen.send_signal(signal.SIGTERM)
            assert await gateway.end() == 0

    run(scenario())


def test_what_cannot_be_read_ends_its_connection_to_the_door(tmp_path: Path) -> None:
    """A callback that fails is called again at once: the loop would spin for ever."""

    async def scenario() -> None:
        with process(tmp_path / "s", listen="127.0.0.1:0") as gateway:
            await gateway.port()
            for line in (b"[" * 60_000 + b"\n", b'{"op":"\xff"}\n', b"\0\n"):
                with handover.short(tmp_path / "s" / handover.NAME) as name:
                    reader, writer = await asyncio.open_unix_connection(name)
                writer.write(line)
                assert b"unknown request" in await reader.read()
                writer.close()

    run(scenario())
