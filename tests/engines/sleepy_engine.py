"""The fake engine with doors to sleep and wake by, as vLLM has them, and its GPU memory on the fake driver's card.

Answers for: POST /sleep, POST /wake_up and GET /is_sleeping; completions of a sleeper are 503. All flags of the fake
engine are taken too. GET /stats adds how often each door was called. It may not import anything of ours.
"""
# mypy: disable-error-code="explicit-override"

import argparse
import fcntl
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.engines import fake_engine
from tests.engines.fake_engine import Json, error


def options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    add = parser.add_argument
    add("--card", metavar="FILE", help="of FAKE_NVML_JSON: it is listed on the first GPU")
    add("--gpu-memory", type=int, default=0, help="with so many bytes, a tenth while it sleeps")
    add("--turn-s", type=float, default=0.0, help="falling asleep and waking take so long")
    add("--restless", action="store_true", help="its doors answer, and nothing is done")
    return parser.parse_known_args(argv)[0]


class Sleepy(fake_engine.Engine):
    def __init__(self, flags: argparse.Namespace, child: int) -> None:
        super().__init__(flags, child)
        self.nap = options(sys.argv[1:])
        self.asleep = False
        self.doors = {"/sleep": 0, "/wake_up": 0}
        self.show()

    def refusal(self, headers: dict[str, str]) -> tuple[int, Json] | None:
        return error(503, "asleep") if self.asleep else super().refusal(headers)

    def stats(self) -> Json:
        return super().stats() | {"doors": self.doors, "asleep": self.asleep}

    def plain(self, method: str, path: str, body: bytes) -> tuple[int, Json]:
        if (method, path) == ("GET", "/is_sleeping"):
            return 200, {"is_sleeping": self.asleep}
        if method == "POST" and path in self.doors:
            self.doors[path] += 1
            time.sleep(self.nap.turn_s)  # it does nothing else meanwhile
            self.asleep = self.asleep if self.nap.restless else path == "/sleep"
            self.show()
            return 200, {}
        return super().plain(method, path, body)

    def show(self) -> None:
        """What the driver lists of it from now on; several engines share the card."""
        if not self.nap.card:
            return
        card, mine = Path(self.nap.card), self.nap.gpu_memory // (10 if self.asleep else 1)
        with card.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            told = json.loads(card.read_text())
            gpu = told["gpus"][0]
            others = (p for p in gpu["procs"] if p["pid"] != os.getpid())
            there = [p for p in others if Path(f"/proc/{p['pid']}").exists()]
            gpu["procs"] = [*there, {"pid": os.getpid(), "mem": mine}]
            gpu["mem_used"] = sum(p["mem"] for p in gpu["procs"])
            new = card.with_suffix(".turned")
            new.write_text(json.dumps(told))
            new.replace(card)


if __name__ == "__main__":
    fake_engine.Engine = Sleepy  # type: ignore[misc]
    fake_engine.main()
