"""What a gateway process is sent by mistake: signals that mean nothing to it, words nobody understands."""

import asyncio
import signal
import socket
from pathlib import Path

from llmgw import handover
from tests.gateway.fake_control import fake_control
from tests.gateway.peers import request
from tests.gateway.rig import loaded, run, table
from tests.gateway.test_main import ASK, client, engine, process


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


def test_whoever_comes_before_the_first_table_is_served_and_not_turned_away(tmp_path: Path) -> None:
    """Just spawned, and the model is ready: the table is a moment away, and the listener's queue is long."""

    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        fd, port = listener.fileno(), listener.getsockname()[1]
        async with fake_control() as control, engine() as e, client(port) as early:
            early.send(request(ASK))
            given = {"controls": [control.url], "listen_fd": fd, "pass_fds": (fd,)}
            with process(tmp_path / "s", **given):
                await control.until(lambda: control.polls)
                await control.publish(table(1, m=loaded(e.replica())))
                assert (await early.answer()).status == 200
        listener.close()

    run(scenario())
