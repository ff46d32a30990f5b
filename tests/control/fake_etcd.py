"""An etcd in memory behind its JSON gateway, over a clock that a test moves and calls that a test may damage.

Answers for: what of https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/ the lease uses, as a real one answers it
(`test_lease_etcd_real.py` asks the same of that). It may not know what is tested.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
from typing_extensions import override

Json = dict[str, Any]


class Clock:
    def __init__(self) -> None:
        self.now = 500.0

    def __call__(self) -> float:
        return self.now


class Events(httpx.AsyncByteStream):
    def __init__(self, etcd: FakeEtcd, key: str, limit_s: float) -> None:
        self.etcd, self.key, self.limit_s = etcd, key, limit_s

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'{"result":{"created":true}}\n'
        gone = self.etcd.gone.setdefault(self.key, asyncio.Event())
        try:
            async with asyncio.timeout(self.limit_s):
                await gone.wait()
        except TimeoutError:
            msg = "nothing came"
            raise httpx.ReadTimeout(msg) from None
        del self.etcd.gone[self.key]
        yield b'{"result":{"events":[{"type":"DELETE","kv":{}}]}}\n'


class FakeEtcd(httpx.AsyncBaseTransport):
    """`fault` says what becomes of a call: "" nothing, "lost" it never arrives, "unheard" its answer does not."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.kvs: dict[str, Json] = {}
        self.leases: dict[str, tuple[int, float]] = {}
        self.revision = 1
        self.fault: Callable[[str, str], str] = lambda _host, _path: ""
        #: what is said instead of an answer
        self.instead: Callable[[str, Any], Any] = lambda _path, said: said
        #: how long an answer is on its way
        self.slow_s: Callable[[str], float] = lambda _: 0.0
        self.gone: dict[str, asyncio.Event] = {}
        self.limit_bytes = 1 << 20
        self.user: tuple[str, str] | None = None
        self.tokens: set[str] = set()
        self.calls: list[tuple[str, str]] = []

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path, host = request.url.path, request.url.host
        self.calls.append((host, path))
        await asyncio.sleep(0)
        fault = self.fault(host, path)
        if fault == "lost":
            msg = "connection refused"
            raise httpx.ConnectError(msg)
        self._lapse()
        if len(request.content) > self.limit_bytes:
            return httpx.Response(400, json={"error": "etcdserver: request is too large"})
        body = msgspec.json.decode(request.content)
        refused = self._unauthorised(request, path)
        if refused:
            return refused
        if path == "/v3/watch":
            limit_s = request.extensions["timeout"]["read"]
            key = _key(body["create_request"])
            if key not in self.kvs:
                self.gone.setdefault(key, asyncio.Event()).set()
            return httpx.Response(200, stream=Events(self, key, limit_s))
        said = self.instead(path, self._said(path, body))
        self.clock.now += self.slow_s(path)
        if fault == "unheard":
            msg = "the answer is lost"
            raise httpx.ReadError(msg)
        return said if isinstance(said, httpx.Response) else httpx.Response(200, json=said)

    def _unauthorised(self, request: httpx.Request, path: str) -> httpx.Response | None:
        if self.user is None or path == "/v3/auth/authenticate":
            return None
        token = request.headers.get("authorization", "")
        if not token:
            return httpx.Response(400, json={"error": "etcdserver: user name is empty", "code": 3})
        if token not in self.tokens:
            return httpx.Response(401, json={"error": "etcdserver: invalid auth token", "code": 16})
        return None

    def _said(self, path: str, body: Json) -> Json | httpx.Response:
        match path:
            case "/v3/auth/authenticate":
                if (body["name"], body["password"]) != self.user:
                    return httpx.Response(400, json={"error": "authentication failed", "code": 3})
                token = f"token{len(self.calls)}"
                self.tokens.add(token)
                return {"token": token}
            case "/v3/lease/grant":
                name, ttl = str(7000 + len(self.calls)), int(body["TTL"])
                self.leases[name] = (ttl, self.clock.now + ttl)
                return {"ID": name, "TTL": str(ttl)}
            case "/v3/lease/keepalive":
                return {"result": self._kept_alive(body["ID"])}
            case "/v3/lease/revoke":
                self.leases.pop(body["ID"], None)
                self._lapse()
                return {}
            case "/v3/kv/txn":
                return self._txn(body)
            case _:
                return httpx.Response(404, text="no such path")

    def _kept_alive(self, name: str) -> Json:
        found = self.leases.get(name)
        if found is None:
            return {"ID": name}  # 0 is left out
        self.leases[name] = (found[0], self.clock.now + found[0])
        return {"ID": name, "TTL": str(found[0])}

    def _txn(self, body: Json) -> Json:
        true = all(self._holds(c) for c in body.get("compare", ()))
        operations = body["success" if true else "failure"]
        if any("request_put" in o for o in operations):
            self.revision += 1
        said: Json = {"header": {"revision": str(self.revision)}}
        said |= {"succeeded": True} if true else {}
        responses = [self._operated(o) for o in operations]
        return said | ({"responses": responses} if responses else {})

    def _holds(self, compare: Json) -> bool:
        field = {"CREATE": "create_revision", "MOD": "mod_revision"}[compare["target"]]
        there = self.kvs.get(_key(compare), {})
        return str(there.get(field, "0")) == str(compare[field])

    def _operated(self, operation: Json) -> Json:
        if put := operation.get("request_put"):
            key, now = _key(put), str(self.revision)
            old = self.kvs.get(key, {})
            self.kvs[key] = {
                "key": put["key"],
                "value": put["value"],
                "create_revision": old.get("create_revision", now),
                "mod_revision": now,
            } | ({"lease": put["lease"]} if "lease" in put else {})
            return {"response_put": {}}
        found = self.kvs.get(_key(operation["request_range"]))
        return {"response_range": {"kvs": [found], "count": "1"} if found else {}}

    def _lapse(self) -> None:
        self.leases = {k: v for k, v in self.leases.items() if v[1] > self.clock.now}
        for key, kv in list(self.kvs.items()):
            if "lease" in kv and kv["lease"] not in self.leases:
                self.remove(key)

    def remove(self, key: str) -> None:
        del self.kvs[key]
        if key in self.gone:
            self.gone[key].set()

    # -- for tests

    def value(self, key: str) -> bytes:
        return b64decode(self.kvs[key]["value"])

    def put(self, key: str, value: bytes) -> None:
        self._txn({"success": [{"request_put": {"key": _coded(key), "value": _coded(value)}}]})


def _coded(text: str | bytes) -> str:
    return b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def _key(operation: Json) -> str:
    return b64decode(operation["key"]).decode()
