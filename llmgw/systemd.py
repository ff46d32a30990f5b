"""Between a part of llmgw and the service manager it was started by: sd_notify(3), sd_listen_fds(3), sd_watchdog(3).

Answers for: "ready", "stopping", "reloading" and "still alive" at the moment they are true, and for listening sockets
that the manager keeps while nobody of ours runs. Without a manager it does nothing. May not decide what is served.

The variables are taken out of the environment: what a part starts is not the service and must not speak for it.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress

#: SD_LISTEN_FDS_START
FIRST_FD = 3
BACKLOG = 4096
#: A manager that does not take a word within this time hears the next one.
PATIENCE_S = 1.0
#: "Alive" is said this often within the time that is allowed.
PER_LIMIT = 4
VARIABLES = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
)


class Service:
    """`watchdog_s` 0: nobody waits for a sign of life."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        told = {name: environ.pop(name, "") for name in VARIABLES}
        self._socket = told["NOTIFY_SOCKET"].replace("@", "\0", 1)
        ours = told["WATCHDOG_PID"] in ("", str(os.getpid()))
        usec = told["WATCHDOG_USEC"]
        self.watchdog_s = int(usec) / 1e6 if usec.isdecimal() and ours and self._socket else 0.0
        if self.watchdog_s:
            faulthandler.enable()  # the manager ends a wedged process by SIGABRT: say where it hung
        self._alive_s = float("-inf")
        self._passed = _passed(told)

    # -- what it says

    def ready(self, status: str) -> None:
        self._say(f"READY=1\nSTATUS={status}")

    def stopping(self, status: str) -> None:
        self._say(f"STOPPING=1\nSTATUS={status}")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Whatever comes of it, it ends: a service that reloads for ever is killed."""
        self._say(
            f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
        )
        try:
            yield
        finally:
            self._say("READY=1")

    def alive(self) -> None:
        """To be called by the very loop that must not hang, as often as it likes."""
        now_s = time.monotonic()
        if self.watchdog_s and now_s - self._alive_s >= self.watchdog_s / PER_LIMIT:
            self._alive_s = now_s
            self._say("WATCHDOG=1", patience_s=0.0)

    def beats_within(self, every_s: float) -> float:
        """For a loop that turns over so rarely: twice as often as its silence is borne (sd_watchdog_enabled(3))."""
        return min(every_s, self.watchdog_s / 2) if self.watchdog_s else every_s

    # -- listening sockets

    def listener(self, host: str, port: int) -> socket.socket | None:
        """One on this address that was passed to us, as a socket unit's or as one that we gave into keeping."""
        try:
            wanted = {a[4][:2] for a in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        except OSError:
            return None  # whoever binds it says what is wrong
        for passed in self._passed:
            if passed[1].getsockname()[:2] in wanted:
                self._passed.remove(passed)
                passed[1].listen(BACKLOG)
                return passed[1]
        return None

    def keep(self, name: str, listener: socket.socket) -> None:
        """For the next process of this service. Handed over again it is known, and kept once."""
        self._say(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", fds=(listener.fileno(),))

    def let_go(self) -> list[str]:
        """Close what nobody asked for: clients would wait at a door that stays shut. Says where that was.

        Before anything is kept: the manager drops all that it keeps under the name.
        """
        shut = []
        for name, passed in self._passed:
            host, port = passed.getsockname()[:2]
            shut.append(f"{host}:{port}")
            passed.close()
            self._say(f"FDSTOREREMOVE=1\nFDNAME={name}")
        self._passed = []
        return shut

    def _say(
        self, words: str, *, fds: tuple[int, ...] = (), patience_s: float = PATIENCE_S
    ) -> None:
        if not self._socket:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.settimeout(patience_s)
            to.connect(self._socket)
            socket.send_fds(to, [words.encode()], fds) if fds else to.send(words.encode())


def _passed(told: MutableMapping[str, str]) -> list[tuple[str, socket.socket]]:
    """TCP listeners only; anything else that a unit passes is not ours to close."""
    if told["LISTEN_PID"] != str(os.getpid()) or not told["LISTEN_FDS"].isdecimal():
        return []
    names = told["LISTEN_FDNAMES"].split(":")
    found = []
    for n in range(int(told["LISTEN_FDS"])):
        os.set_inheritable(FIRST_FD + n, False)  # noqa: FBT003 - that is its signature
        with suppress(OSError):
            passed = socket.socket(fileno=FIRST_FD + n)
            if (
                passed.family in (socket.AF_INET, socket.AF_INET6)
                and passed.type == socket.SOCK_STREAM
            ):
                found.append((names[n] if n < len(names) else "", passed))
            else:
                passed.detach()
    return found
