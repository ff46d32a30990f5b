"""The server of the agent's API, on a listener that is there already. Loaded late: it costs as much as all the rest.

May not answer anything itself.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from typing_extensions import override

from llmgw.agent import api
from llmgw.agent.view import View
from llmgw.certificate import Certificate


class _Server(uvicorn.Server):
    """Leaves signals to us."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(view: View, listener: socket.socket, certificate: Certificate) -> None:
    pair = certificate.pair
    config = uvicorn.Config(
        api.app(view),
        http="h11",  # httptools collects headers and trailers without end, also a stranger's
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        ssl_certfile=None if pair is None else str(pair.cert),
        ssl_keyfile=None if pair is None else str(pair.key),
    )
    config.load()
    certificate.on(config.ssl)
    server = _Server(config)
    try:
        await server.serve(sockets=[listener])
    finally:
        server.should_exit = True
