"""The certificate that control or an agent serves with, read again while it serves: at HUP, and where it is another.

Answers for: nobody is cut, whoever connects from then on is shown the new one, and who tells others of our pin hears of
it. One that cannot be used changes nothing and says why. May not make one, nor end a pin that others have.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

from llmgw import tls
from llmgw.errors import LlmgwError

LOOK_S = 60.0


class Say(Protocol):
    """`level`: info or warning."""

    def __call__(self, why: str, /, *, level: str) -> None: ...


class Certificate:
    """`pair` None: plain HTTP, where there is nothing to renew and the pin is ""."""

    def __init__(self, pair: tls.Pair | None, say: Say) -> None:
        self.pair = pair
        #: called where the pin is another
        self.renewed: list[Callable[[], None]] = []
        self._served = None if pair is None else tls.Served(pair)
        self._say = say
        self._problem = ""

    @property
    def pin(self) -> str:
        return "" if self._served is None else self._served.pin

    def said(self) -> str:
        """What of it is wrong, "" for nothing."""
        return self._problem

    def on(self, context: ssl.SSLContext | None) -> None:
        if self._served is not None and context is not None:
            self._served.on(context)

    def reread(self) -> None:
        if self._served is None:
            return
        before = self._served.pin
        try:
            self._served.renew()
        except LlmgwError as e:
            self._problem = f"{e.message}; the one in use stays - {e.hint}"
            self._say(self._problem, level="warning")
            return
        self._problem = ""
        if before != self._served.pin:
            why = f"the certificate was renewed: it is {self._served.pin} now, and was {before}"
            self._say(why, level="info")
            for heard in self.renewed:
                heard()

    async def run(self) -> None:
        """Until cancelled: a renewal that sends no signal is seen all the same. Files that are gone are none."""
        while self._served is not None:
            await asyncio.sleep(LOOK_S)
            if self._served.other:
                self.reread()
