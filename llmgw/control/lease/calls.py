"""One etcd over its JSON gateway: bounded calls, the next server when one fails, a token where there is a user.

https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/: keys and values are base64, 64-bit numbers are strings, what is
false or 0 is left out. Answers for: every call ends in time, with the answer or with EtcdError. It may not know what
a lease is for, nor try a call again: whether one that failed was carried out nobody knows.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import msgspec

from llmgw.control.lease.spec import Store
from llmgw.errors import system_said

Json = dict[str, Any]
_STALE = "invalid auth token"
_NO_USER = "user name is empty"


class EtcdError(Exception):
    """No answer, or a no; `server` said it, or was asked. Whether the call was carried out is not known."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__(f"{server}: {why}")


class Etcd:
    """`current` is the server asked now: the next one after each failure."""

    def __init__(self, where: Store, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.where = where
        self._at = 0
        self._token = ""
        # A client of its own: nobody else's calls stand before a renewal (F29), and no proxy of a login shell.
        self._client = httpx.AsyncClient(
            trust_env=False,
            verify=where.tls(),
            timeout=where.call_s,
            transport=transport,
        )

    @property
    def current(self) -> str:
        return self.where.servers[self._at]

    async def close(self) -> None:
        await self._client.aclose()

    async def call(self, path: str, body: Json) -> Json:
        server = self.current
        try:
            return await self._answered(server, path, body)
        except EtcdError:
            self._next(server)
            raise

    async def _answered(self, server: str, path: str, body: Json) -> Json:
        for last in (False, True):
            if self.where.user and not self._token:
                await self._authenticate(server)
            answer = await self._post(server, path, body)
            if answer.is_success:
                return _decoded(server, answer)
            said = _said(answer)
            # A token lapses, and one server may not know what another gave.
            if last or not self.where.user or _STALE not in said:
                raise EtcdError(server, said)
            self._token = ""
        raise AssertionError

    async def _authenticate(self, server: str) -> None:
        body = {"name": self.where.user, "password": self.where.password}
        answer = await self._post(server, "/v3/auth/authenticate", body)
        if not answer.is_success:
            raise EtcdError(server, f"user {self.where.user} is refused: {_said(answer)}")
        self._token = str(_decoded(server, answer).get("token", ""))

    async def _post(self, server: str, path: str, body: Json) -> httpx.Response:
        try:
            return await self._client.post(
                f"{server}{path}", content=msgspec.json.encode(body), headers=self._headers
            )
        except httpx.HTTPError as e:
            raise EtcdError(server, _reason(e, self.where.call_s)) from e

    @property
    def _headers(self) -> dict[str, str]:
        head = {"Content-Type": "application/json"}
        return head | ({"Authorization": self._token} if self._token else {})

    def _next(self, failed: str) -> None:
        if self.current == failed:
            self._at = (self._at + 1) % len(self.where.servers)

    async def events(self, key: str, revision: int, wait_s: float) -> AsyncGenerator[Json, None]:
        """What became of a key from this revision on; ends when nothing came for `wait_s`, and with the connection."""
        server = self.current
        ask = {"create_request": {"key": text(key), "start_revision": str(revision)}}
        request = self._client.build_request(
            "POST",
            f"{server}/v3/watch",
            content=msgspec.json.encode(ask),
            headers=self._headers,
            timeout=httpx.Timeout(self.where.call_s, read=wait_s),
        )
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.HTTPError as e:
            self._next(server)
            raise EtcdError(server, _reason(e, wait_s)) from e
        try:
            if not answer.is_success:
                await answer.aread()
                raise EtcdError(server, _said(answer))
            async for line in answer.aiter_lines():
                for event in msgspec.json.decode(line).get("result", {}).get("events", ()):
                    yield event
        except httpx.ReadTimeout:
            return
        except (httpx.HTTPError, msgspec.MsgspecError) as e:
            self._next(server)
            raise EtcdError(server, _reason(e, wait_s)) from e
        finally:
            await answer.aclose()


def text(value: str | bytes) -> str:
    """As the gateway has keys and values."""
    return b64encode(value if isinstance(value, bytes) else value.encode()).decode()


def plain(coded: str) -> bytes:
    return b64decode(coded)


def number(value: object) -> int:
    """64-bit numbers are strings, and 0 is left out."""
    return int(value) if isinstance(value, str | int) else 0


def _decoded(server: str, answer: httpx.Response) -> Json:
    try:
        found = msgspec.json.decode(answer.content)
    except msgspec.MsgspecError as e:
        raise EtcdError(server, f"answers no JSON: {answer.text[:80]!r}") from e
    if not isinstance(found, dict):
        raise EtcdError(server, f"answers {answer.text[:80]!r}")
    return found


def _said(answer: httpx.Response) -> str:
    try:
        found = msgspec.json.decode(answer.content)
        said = str(found.get("error") or found.get("message") or found)
    except (msgspec.MsgspecError, AttributeError):
        said = answer.text[:200].strip()
    if _NO_USER in said:
        said += " (set LLMGW_ETCD_USER and LLMGW_ETCD_PASSWORD)"
    return f"{answer.status_code} {said}".strip()


def _reason(error: Exception, limit_s: float) -> str:
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {limit_s:.1f} s"
    return system_said(error).lower() or str(error) or type(error).__name__
