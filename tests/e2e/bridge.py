"""Any number of boxes as network namespaces on one bridge, with this one on it too; and packets that get lost.

Answers for: made with iproute2, gone afterwards whatever happens, no name or address of two runs alike; what a rule
drops is lost silently and in one direction only, as in a network that is broken (iptables-extensions(8)). It may not
know what runs there.

    here 10.N.9.254/24 ─── bridge ─── box i 10.N.9.i
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from tests.e2e.netns import NETS, ip

Way = Literal["in", "out"]
HERE = 254


@dataclass
class Bridge:
    net: int
    prefix: str
    boxes: tuple[str, ...]
    made: list[str] = field(default_factory=list)

    @property
    def link(self) -> str:
        return f"{self.prefix}br"

    @property
    def here(self) -> str:
        return f"10.{self.net}.9.{HERE}"

    def address(self, box: str) -> str:
        return f"10.{self.net}.9.{1 + self.boxes.index(box)}"

    def name(self, box: str) -> str:
        return f"llmgw-{self.prefix}-{box}"

    def inside(self, box: str) -> list[str]:
        """Before a command line, to run it there."""
        return ["ip", "netns", "exec", self.name(box)]

    # -- a broken network

    def lose(self, box: str, *peers: str, way: Sequence[Way] = ("in", "out")) -> None:
        """Of what `box` is sent by `peers`, or sends them, nothing arrives."""
        for peer in peers:
            there = self.here if peer == "here" else self.address(peer)
            for one in way:
                self._drop(box, one, "-s" if one == "in" else "-d", there)

    def lose_port(self, box: str, port: int, way: Sequence[Way] = ("in", "out")) -> None:
        """Nothing of what `box` asks of this port anywhere arrives, its own address included; or no answer does."""
        for one in way:
            self._drop(box, one, "-p", "tcp", "--sport" if one == "in" else "--dport", str(port))

    def heal(self, *boxes: str) -> None:
        for box in boxes or self.boxes:
            _run(*self.inside(box), "iptables", "-F")

    def _drop(self, box: str, way: Way, *what: str) -> None:
        chain = "INPUT" if way == "in" else "OUTPUT"
        _run(*self.inside(box), "iptables", "-A", chain, *what, "-j", "DROP")


@contextmanager
def bridged(*boxes: str) -> Iterator[Bridge]:
    mine = os.getpid()
    bridge = Bridge(NETS[mine % len(NETS)], f"lb{mine}", boxes)
    try:
        ip("link", "add", bridge.link, "type", "bridge")
        ip("addr", "add", f"{bridge.here}/24", "dev", bridge.link)
        ip("link", "set", bridge.link, "up")
        for i, box in enumerate(boxes):
            name, ours = bridge.name(box), f"{bridge.prefix}-{i}"  # at most 15 characters
            ip("netns", "add", name)
            bridge.made.append(name)
            ip("link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", ours, "master", bridge.link, "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{bridge.address(box)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield bridge
    finally:
        # First the link: with the last words of a connection that was cut a namespace lives on for minutes.
        for i, _ in enumerate(bridge.made):
            subprocess.run(["ip", "link", "del", f"{bridge.prefix}-{i}"], check=False)
        subprocess.run(["ip", "link", "del", bridge.link], check=False)
        for name in bridge.made:
            ip("netns", "del", name)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{' '.join(words)}: {done.stderr.strip()}"
        raise RuntimeError(msg)
