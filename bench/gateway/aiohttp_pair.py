"""A gateway as one writes it first: aiohttp's server before aiohttp's client. `aiohttp_pair.py PORT ENGINE_PORT`.

Run by an interpreter that has aiohttp (`build/bench/venv`), so it may import nothing of ours.
"""

from __future__ import annotations

import json
import sys

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


def passed(headers):  # type: ignore[no-untyped-def]
    return [(k, v) for k, v in headers.items() if k.lower() not in HOP]


async def relay(request):  # type: ignore[no-untyped-def]
    body = await request.read()
    assert json.loads(body)["model"]
    url = request.app["engine"] + request.path_qs
    session = request.app["session"]
    async with session.post(url, data=body, headers=passed(request.headers)) as found:
        if found.content_type != "text/event-stream":
            whole = await found.read()
            return web.Response(status=found.status, body=whole, headers=passed(found.headers))
        answer = web.StreamResponse(status=found.status, headers=passed(found.headers))
        await answer.prepare(request)
        async for part in found.content.iter_any():
            await answer.write(part)
        await answer.write_eof()
        return answer


async def session(app):  # type: ignore[no-untyped-def]
    connector = TCPConnector(limit=0)
    async with ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as opened:
        app["session"] = opened
        yield


def main(port: int, engine_port: int) -> None:
    app = web.Application(client_max_size=64 * 1024 * 1024, handler_args={"access_log": None})
    app["engine"] = f"http://127.0.0.1:{engine_port}"
    app.cleanup_ctx.append(session)
    app.router.add_post("/{tail:.*}", relay)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


main(int(sys.argv[1]), int(sys.argv[2]))
