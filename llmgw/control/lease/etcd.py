"""A lease for several hosts: one key in an etcd, bound to an etcd lease, taken by a transaction (design.md 5).

Renewed at a third of its ttl; acting ends at two thirds, counted from before the call that renewed it, on a clock of
this host alone that runs while the host sleeps (F23, F26, F27). Each renewal also asks whether the key is still the
one we made: an etcd lease that lives says nothing about that (F24, F28). All of it runs in the writer's own event loop,
so that a loop that hangs loses the lease (F18), and none of it in the writer's turn. Keys: PREFIX/leader, PREFIX/epoch,
PREFIX/intent. No election of our own: etcd orders the transactions. It may not decide what a leader does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import httpx
import msgspec
from msgspec.structs import replace
from typing_extensions import override

from llmgw.clock import awake_s
from llmgw.control.crash import crash
from llmgw.control.lease.base import Epochs, Holder, LeaseLostError, NotYetError, Told
from llmgw.control.lease.calls import Etcd, EtcdError, number, plain, text
from llmgw.control.lease.spec import Store
from llmgw.errors import LlmgwError

#: After a call that failed the next one; within what is left to the deadline there is time for several.
AGAIN_S = 0.25
#: Giving it back is a kindness to the next leader, and holds nobody's end up.
REVOKE_S = 1.0
Json = dict[str, Any]


class EtcdLease(Told):
    name = "etcd"
    #: Who obeyed one leader of this store obeys the next by its epoch.
    id = "etcd"

    def __init__(
        self,
        where: Store,
        epochs: Epochs,
        *,
        clock: Callable[[], float] = awake_s,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.problem = ""
        self.holder: Holder | None = None
        #: what of `about` is in the key
        self._told = Holder("")
        self.intent = b""
        self._where = where
        self._etcd = Etcd(where, transport)
        self._epochs = epochs
        self._clock = clock
        #: told apart from any other life of any control, also where a call's answer was lost (F32)
        self._uuid = os.urandom(16).hex()
        self._lease = ""
        self._created = self._revision = 0
        self._until = float("-inf")
        self._lost = ""
        #: the highest epoch of ours in the store; what of it was not led with yet; what has to be exceeded
        self._epoch = self._unused = self._above = 0
        self._poke = asyncio.Event()
        self._left: bytes | None = None
        self._written = asyncio.Event()

    # -- asked by the writer, which waits for nobody

    @override
    def _tell(self, told: Holder) -> None:
        """The next renewal does, which is due at once: its certificate may be another."""
        if self._created:
            self._poke.set()

    @property
    def held(self) -> bool:
        return bool(self._created) and not self._lost and self._clock() < self._until

    def acquire(self, leader_uuid: str, above: int) -> int:
        with suppress(LlmgwError):  # a disk that cannot be read
            above = max(above, self._epochs.epoch())
        if self._unused <= above:
            self._above = max(self._above, above)
            self._poke.set()
            msg = (
                f"an epoch above {max(above, self._epoch)} is asked of etcd at {self._etcd.current}"
            )
            raise NotYetError(msg, "it comes with the next answer")
        epoch, self._unused = self._unused, 0
        with suppress(
            LlmgwError
        ):  # etcd has it; what the inventory lacks is said by who keeps that
            self._epochs.write_epoch(epoch, leader_uuid)
        return epoch

    def renew(self) -> None:
        if self._lost:
            msg = f"the lease is lost: {self._lost}"
            raise LeaseLostError(msg, "this process ends; started anew it stands by")

    def deadline(self, now: float) -> float | None:
        return now + self._until - self._clock()

    def publish(self, written: Callable[[], bytes]) -> None:
        intent = written()
        if intent != self.intent:
            self.intent, self._left = intent, intent
            self._written.clear()
            self._poke.set()

    def release(self) -> None:
        """The key was given back where `run` ended; a killed control's lapses."""

    # -- beside the writer

    async def run(self, wake: Callable[[], None], seen: Callable[[], int]) -> None:
        try:
            while not self._lost:
                try:
                    with self._understood():
                        taken = await self._taken(seen())
                    if taken:
                        self.problem = ""
                        wake()
                        await self._kept(wake)
                    else:
                        with self._understood():
                            await self._successor()
                    self.problem = ""
                except EtcdError as e:
                    self.problem = f"the lease store does not answer as it should: {e}"
                    await asyncio.sleep(AGAIN_S)
            wake()
        finally:
            await self._leave()

    async def _taken(self, seen: int) -> bool:
        """One try: the key is made if nobody's is there and the epoch is still the one that was read."""
        told = await self._txn(
            [], [_get(self._leader_key), _get(self._epoch_key), _get(self._intent_key)]
        )
        leader, epoch, intent = (_kv(r) for r in told["responses"])
        self._revision = number(told["header"].get("revision"))
        mine = bool(leader) and _value(leader).get("uuid") == self._uuid
        if leader and not mine:
            self.holder = _holder(_value(leader))
            return False
        if mine:  # the answer to an earlier try was lost
            self._lease, self._epoch = str(leader["lease"]), _value(leader)["epoch"]
            return await self._ours(leader["create_revision"], intent)
        await self._granted()
        stored = number(_value(epoch)) if epoch else 0
        about, number_now = self._about, 1 + max(stored, seen)
        crash("before_epoch")
        told = await self._txn(
            [
                _compare(self._leader_key, "CREATE", "create_revision", 0),
                _compare(self._epoch_key, "MOD", "mod_revision", number(epoch.get("mod_revision"))),
            ],
            self._puts(about, number_now),
        )
        if not told.get("succeeded"):
            return False
        self._epoch, self._told = number_now, about
        return await self._ours(told["header"]["revision"], intent)

    async def _ours(self, created: str, intent: Json) -> bool:
        """Whoever leads next leads with what was left; how long the lease has been running is asked, not guessed."""
        self._created, self._unused, self.holder = number(created), self._epoch, None
        if self._left is None:
            self.intent = plain(intent.get("value", ""))
        await self._renewed()
        return True

    async def _granted(self) -> None:
        """A fresh one for each try: what an earlier try may have bound to its own is found by the next look."""
        told = await self._etcd.call(
            "/v3/lease/grant", {"TTL": str(round(self._where.ttl_s)), "ID": "0"}
        )
        if not number(told["ID"]):
            raise ValueError(told)
        self._lease = str(told["ID"])

    async def _kept(self, wake: Callable[[], None]) -> None:
        """Until it is lost. A store that is away ends the acting (`held`), not the lease: nobody has it instead."""
        pause_s = self._where.ttl_s / 3
        while not self._lost:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._poke.wait()
            self._poke.clear()
            before = self.held
            try:
                with self._understood():
                    await self._renewed()
                if self._above:
                    await self.rise(self._above)
                    wake()
            except EtcdError as e:
                self.problem = f"the lease cannot be renewed: {e}"
                pause_s = AGAIN_S
            else:
                self.problem = ""
                pause_s = self._where.ttl_s / 3
                await self._write()
            if self.held != before or self._lost:
                wake()

    async def _renewed(self) -> None:
        began = self._clock()
        told = await self._etcd.call("/v3/lease/keepalive", {"ID": self._lease})
        ttl_s = number(_of_ours(told["result"], self._lease).get("TTL"))
        if not ttl_s:
            self._lost = "etcd let it lapse"
            return
        about = self._about
        news = [] if about == self._told else [self._signed(about, self._epoch)]
        told = await self._txn([self._still_ours], news, [_get(self._leader_key)])
        if not told.get("succeeded"):
            by = _kv(told["responses"][0])
            who = _holder(_value(by)).name if by else "nobody"
            self._lost = f"its key was removed, {who} has it now"
            return
        self._told = about
        # from before the call: how long its answer took nobody knows (F23)
        self._until = began + min(ttl_s, self._where.ttl_s) * 2 / 3

    async def _write(self) -> None:
        """Apart from the renewal, which must not fail for what is too large or not allowed."""
        left = self._left
        if left is None or self._lost:
            return
        try:
            with self._understood():
                told = await self._txn([self._still_ours], [_put(self._intent_key, left)])
        except EtcdError as e:
            self.problem = f"what the next leader must know cannot be left in etcd: {e}"
            return
        if told.get("succeeded") and self._left is left:
            self._left = None
            self._written.set()

    async def rise(self, above: int) -> None:
        """A new epoch while it is ours (F16). What is not had is missed by `acquire`, which says so."""
        if self._unused > above or not self._created:
            return
        epoch = 1 + max(above, self._epoch)
        with suppress(EtcdError), self._understood():
            told = await self._txn(
                [self._still_ours], self._puts(self._about, epoch), [_get(self._leader_key)]
            )
            if told.get("succeeded"):
                self._epoch = self._unused = epoch
                self._above = 0
            else:
                self._lost = "its key was removed"

    async def left(self) -> None:
        """One call's time: an operator who was told that it is done may pull the plug of this host."""
        if self._left is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._where.call_s):
                await self._written.wait()

    async def _successor(self) -> None:
        """Until the leader's key changes; looked at anew after a ttl, whatever the watch does."""
        changes = self._etcd.events(self._leader_key, self._revision + 1, self._where.ttl_s)
        async with aclosing(changes):
            async for change in changes:
                if change.get("type") == "DELETE":
                    return
                self.holder = _holder(_value(change.get("kv", {})))

    async def _leave(self) -> None:
        """The next leader need not wait for the ttl."""
        self._until = float("-inf")
        try:
            if self._lease:
                async with asyncio.timeout(REVOKE_S):
                    await self._etcd.call("/v3/lease/revoke", {"ID": self._lease})
        except (EtcdError, TimeoutError):
            pass
        finally:
            await self._etcd.close()

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Whoever answers there, a proxy's page or another program, ends no control and gives nobody the lead."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as e:
            why = f"answers what no etcd does ({type(e).__name__}: {str(e)[:80]})"
            raise EtcdError(self._etcd.current, why) from e

    # -- words of the transactions

    async def _txn(self, compare: list[Json], then: list[Json], otherwise: list[Json] = []) -> Json:  # noqa: B006 - read only
        body = {"compare": compare, "success": then, "failure": otherwise}
        told = await self._etcd.call("/v3/kv/txn", body)
        if not number(
            told["header"]["revision"]
        ):  # a no is what is left out, so is everything in what is no answer
            raise ValueError(told["header"])
        return told

    def _puts(self, about: Holder, epoch: int) -> list[Json]:
        return [self._signed(about, epoch), _put(self._epoch_key, str(epoch).encode())]

    def _signed(self, about: Holder, epoch: int) -> Json:
        value = msgspec.to_builtins(replace(about, epoch=epoch)) | {"uuid": self._uuid}
        return _put(self._leader_key, msgspec.json.encode(value), self._lease)

    @property
    def _still_ours(self) -> Json:
        return _compare(self._leader_key, "CREATE", "create_revision", self._created)

    @property
    def _leader_key(self) -> str:
        return f"{self._where.prefix}/leader"

    @property
    def _epoch_key(self) -> str:
        return f"{self._where.prefix}/epoch"

    @property
    def _intent_key(self) -> str:
        return f"{self._where.prefix}/intent"


def _of_ours(result: Json, lease: str) -> Json:
    """An answer about this lease: 0 and a lapsed one's ttl are left out, as is everything in what is no answer."""
    if str(result["ID"]) != lease:
        raise ValueError(result)
    return result


def _get(key: str) -> Json:
    return {"request_range": {"key": text(key)}}


def _put(key: str, value: bytes, lease: str = "") -> Json:
    return {
        "request_put": {"key": text(key), "value": text(value)}
        | ({"lease": lease} if lease else {})
    }


def _compare(key: str, target: str, field: str, value: int) -> Json:
    return {"key": text(key), "target": target, "result": "EQUAL", field: str(value)}


def _kv(response: Json) -> Json:
    """The one key of a range, {} for none."""
    found: list[Json] = response.get("response_range", {}).get("kvs", [])
    return found[0] if found else {}


def _value(kv: Json) -> Any:
    try:
        return msgspec.json.decode(plain(kv.get("value", "")))
    except (msgspec.MsgspecError, ValueError):
        return {}


def _holder(value: Any) -> Holder:
    """Somebody wrote there what is none of ours: it leads as far as we are concerned, nobody knows who."""
    try:
        return msgspec.convert(value, Holder)
    except msgspec.ValidationError:
        return Holder("somebody else")
