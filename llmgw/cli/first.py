"""What a first start of `llmgw up` needs, and what one that failed leaves: free ports, flags that hold, no gateway.

Answers for: refusals in the words of `up` before anything is started; the end of a gateway that this `up` brought, and
of no other. May not touch one that was there before.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from llmgw import config
from llmgw.cli import ask
from llmgw.errors import LlmgwError

TICK_S = 0.1
#: Who is on the way out gives its port back by then.
LEAVING_S = 2.0
#: A gateway that has served nobody ends at once.
END_S = 5.0


def check(node: str, ports: str, gpus: str) -> None:
    """As the agent will check them, who is started last and would be ended with all that was started before."""
    from llmgw.agent.gpu import from_file
    from llmgw.agent.settings import check_node
    from llmgw.cli.daemons import port_range

    if node:
        check_node(node)
    port_range(ports)
    if gpus not in {"auto", "none"}:
        from_file(Path(gpus))


def free(peer: ask.Peer, what: str, option: str) -> None:
    """Nobody listens where this part will; else whose the port is, and the flag of `up` for another."""
    from llmgw.control.listen import bound

    host, port, _ = ask.address(peer)
    give_up = time.monotonic() + LEAVING_S
    while True:
        try:
            bound(config.Address(host, port), what, option).close()
        except LlmgwError:
            if time.monotonic() > give_up:
                raise
            time.sleep(TICK_S)
        else:
            return


class Brought:
    """The gateway that control started under this `up`. `folder`: control's for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = True
        self._pids: set[int] = set()

    def begin(self, gateway: ask.Peer) -> None:
        """Before control is started: one that serves, or hangs with the port, is not ours."""
        host, port, _ = ask.address(gateway)
        self._before = bool(_gateways(self._folder)) or _taken(host, port)

    def look(self, control: int) -> None:
        """While control lives, which is how a child of its is known: afterwards its parent is another."""
        if not self._before and control:
            mine = {pid for pid in _gateways(self._folder) if _parent(pid) == control}
            self._pids |= mine

    def end(self) -> str:
        """What became of it, in words for people; "" where there is none."""
        if self._before:
            return ""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        give_up = time.monotonic() + END_S
        while (left := _gateways(self._folder)) and time.monotonic() < give_up:
            if not self._pids.intersection(left):
                break
            time.sleep(TICK_S)
        if left:
            pids = ", ".join(map(str, left))
            return f"a gateway (pid {pids}) of {self._folder} stays: `kill {pids.replace(',', '')}` ends it"
        return "the gateway that this `llmgw up` had started has ended too" if self._pids else ""


def _taken(host: str, port: int) -> bool:
    import socket

    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def _gateways(folder: Path) -> list[int]:
    """Living gateways with this folder in their arguments, without their workers."""
    from llmgw.agent import process

    found = []
    for pid in process.all_stats():
        words = process.words(pid)  # none of a zombie
        if words[1:4] == ["-m", "llmgw", "gateway"] and str(folder) in words:
            found.append(pid)
    return sorted(found)


def _parent(pid: int) -> int:
    """0 for no such process."""
    from llmgw.agent.process import read_stat

    with suppress(OSError):
        stat = read_stat(pid)
        return 0 if stat is None else stat.ppid
    return 0
