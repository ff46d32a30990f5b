"""Two boxes as network namespaces: each with a link to this one, where control is, and a fast one to the other.

Answers for: made with iproute2, gone afterwards whatever happens, no name or address of two runs alike; a link that is
cut loses everything silently (engines.md 8). It may not know what runs there.

    here 10.N.0.1/30 ── 10.N.0.2 box1 10.N.1.1 ─── fabric ─── 10.N.1.2 box2 10.N.0.6 ── 10.N.0.5/30 here
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Second parts of 10.0.0.0/8 to choose from.
NETS = range(200, 250)
#: The last two: this end of each uplink, the box's end, its end of the fabric.
HERE = {"box1": "0.1", "box2": "0.5"}
ADDRESS = {"box1": "0.2", "box2": "0.6"}
FABRIC = {"box1": "1.1", "box2": "1.2"}


@dataclass
class Wires:
    net: int
    names: dict[str, str] = field(default_factory=dict)
    #: those in this very namespace
    links: list[str] = field(default_factory=list)

    def here(self, box: str) -> str:
        """Where a box finds control."""
        return f"10.{self.net}.{HERE[box]}"

    def address(self, box: str) -> str:
        return f"10.{self.net}.{ADDRESS[box]}"

    def fabric(self, box: str) -> str:
        return f"10.{self.net}.{FABRIC[box]}"

    def inside(self, box: str) -> list[str]:
        """Before a command line, to run it there."""
        return ["ip", "netns", "exec", self.names[box]]

    def cut(self, link: str, box: str = "box2") -> None:
        """`fabric` between the boxes, or `uplink` of one of them to control: at its far end, so nobody is told."""
        ip("-n", self.names[box], "link", "set", link, "down")

    def heal(self, link: str, box: str = "box2") -> None:
        ip("-n", self.names[box], "link", "set", link, "up")


@contextmanager
def wired() -> Iterator[Wires]:
    """Both boxes and their links, until the end of the block."""
    mine = os.getpid()
    wires = Wires(net=NETS[mine % len(NETS)])
    try:
        for box in ("box1", "box2"):
            name = f"llmgw-{mine}-{box}"
            ip("netns", "add", name)
            wires.names[box] = name
            ip("-n", name, "link", "set", "lo", "up")
            ours = f"lg{mine}-{box[-1]}"  # at most 15 characters
            ip("link", "add", ours, "type", "veth", "peer", "name", "uplink", "netns", name)
            wires.links.append(ours)
            ip("addr", "add", f"{wires.here(box)}/30", "dev", ours)
            ip("link", "set", ours, "up")
            _up(name, "uplink", wires.address(box))
        one, two = wires.names["box1"], wires.names["box2"]
        there = ("peer", "name", "fabric", "netns", two)
        ip("-n", one, "link", "add", "fabric", "type", "veth", *there)
        for box, name in wires.names.items():
            _up(name, "fabric", wires.fabric(box))
        yield wires
    finally:
        # First the links: with the last words of a connection that was cut a namespace lives on for minutes.
        for link in wires.links:
            ip("link", "del", link)
        for name in wires.names.values():
            ip("netns", "del", name)


def _up(name: str, link: str, address: str) -> None:
    ip("-n", name, "addr", "add", f"{address}/30", "dev", link)
    ip("-n", name, "link", "set", link, "up")


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"ip {' '.join(words)}: {done.stderr.strip()}"
        raise RuntimeError(msg)
