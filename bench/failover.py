"""Kill the leader under load, round after round; then the whole lease store for a while.

`python -m bench.failover [ROUNDS] [--lease file|etcd|both] [--away SECONDS]` prints figures and a JSON result; exit 1
when a request for a loaded model failed, an engine was restarted, what was on demand ended before its idle timeout, or
the next leader decided later than a lease ttl and a second after the kill (a file's: later than a second). Real
controls, agent, gateway and clients, fake engines; a real etcd, fetched by pip. A decision is a model that the new
leader is asked to load, from the kill to its process; `leads` is from the kill to the end of settling.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.fleet import wait_for
from tests.control import real_etcd
from tests.control.real_etcd import RealEtcd
from tests.e2e.conftest import fake, model, write_catalog
from tests.e2e.test_standby import SECOND, TTL_S, Apart, Pair, under_load

LOADED = ("alpha", "nap")
#: Loaded in odd rounds and ended in even ones: each leader has something to decide.
ASKED = "beta"
FILE_S = 1.0
DEFAULTS = {"drain_timeout": "0.2s", "stop": {"signal": "TERM", "grace": "0.2s"}}


def models() -> dict[str, Any]:
    nap, asked = (model(fake("--alias", name), least=0) for name in ("nap", ASKED))
    nap["scaling"]["idle_timeout"] = "30m"
    asked["scaling"]["idle_timeout"] = "never"
    for one in (nap, asked):
        one["profiles"][0] |= DEFAULTS
    return {"alpha": model(fake("--alias", "alpha")), "nap": nap, ASKED: asked}


def running(pair: Pair, name: str) -> bool:
    return any(shard.startswith(f"{name}-") for shard in pair.engines().values())


def lives(pair: Pair) -> dict[int, str]:
    return {p: s for p, s in pair.engines().items() if not s.startswith(f"{ASKED}-")}


def one_round(pair: Pair) -> tuple[float, float]:
    """Seconds from the kill until the other leads, and until what it decided has happened."""
    there = running(pair, ASKED)
    began = time.monotonic()
    pair.kill("control")
    wait_for(lambda: pair.settled(SECOND), "the other leads and has settled")
    leads_s = time.monotonic() - began
    pair.follow()
    verb = "stop" if there else "wake"
    url = f"{pair.urls['control']}/api/v1/models/{ASKED}/{verb}"
    pair.http.post(url, json={}).raise_for_status()
    if there:
        wait_for(lambda: pair.replicas(ASKED, "draining") or not running(pair, ASKED), "its end")
    else:
        wait_for(lambda: running(pair, ASKED), "its start")
    decided_s = time.monotonic() - began
    pair.start(SECOND)
    wait_for(lambda: pair.of("control")["standbys"], "the leader knows the standby")
    wait_for(lambda: known(pair), "the standby knows the fleet")
    wait_for(lambda: running(pair, ASKED) != there, f"{ASKED} is as it was asked for")
    return leads_s, decided_s


def known(pair: Pair) -> bool:
    pair.check_alive()
    return len(pair.of(SECOND, "/api/v1/status").get("replicas", ())) >= len(LOADED)


def store_away(pair: Pair, etcd: RealEtcd, away_s: float) -> dict[str, float]:
    """Nothing stops, nobody decides, and one leads again by itself."""
    epoch = pair.of("control")["epoch"]
    etcd.stop()
    began = time.monotonic()
    wait_for(lambda: not pair.leads("control"), "its time is over", 2 * TTL_S)
    led = decided = 0
    while time.monotonic() - began < away_s:
        led += pair.leads("control") + pair.leads(SECOND)
        url = f"{pair.urls['control']}/api/v1/models/{ASKED}/wake"
        decided += pair.http.post(url, json={}).is_success
        time.sleep(0.2)
    etcd.start()
    began = time.monotonic()
    wait_for(lambda: any(pair.settled(p) for p in ("control", SECOND)), "one leads again", 30.0)
    back_s = time.monotonic() - began
    leader = next(p for p in ("control", SECOND) if pair.leads(p))
    rose = pair.of(leader)["epoch"] > epoch
    return {"led": led, "decided": decided, "back_s": round(back_s, 2), "new_epoch": rose}


@contextlib.contextmanager
def fleet(kind: str, folder: Path) -> Iterator[tuple[Pair, RealEtcd | None]]:
    with contextlib.ExitStack() as stack:
        catalog = write_catalog(folder / "catalog.yaml", models())
        etcd = None
        pair: Pair = Pair(folder, catalog)
        if kind == "etcd":
            etcd = stack.enter_context(real_etcd.serving(folder / "store"))
            pair = Apart(folder, catalog)
            pair.lease = ("--lease", f"{etcd.spec}?ttl={TTL_S}s")
        stack.callback(pair.close)
        yield pair, etcd


def measured(kind: str, rounds: int, away_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, fleet(kind, Path(name)) as (pair, etcd):
        pair.begin()
        pair.ask("nap").raise_for_status()
        before = lives(pair)
        taken: list[tuple[float, float]] = []
        with contextlib.suppress(AssertionError), under_load(pair):  # counted below
            for number in range(rounds):
                taken.append(one_round(pair))
                said = "round {}: leads {:.2f} s, decided {:.2f} s".format(number + 1, *taken[-1])
                print(said, file=sys.stderr)
            away = store_away(pair, etcd, away_s) if etcd is not None and away_s else {}
        after = lives(pair)
        leads, decided = ([t[i] for t in taken] for i in (0, 1))
        limit_s = FILE_S if kind == "file" else TTL_S + 1.0
        return {
            "lease": kind,
            "rounds": len(taken),
            "requests": len(pair.asked),
            "failed": len(pair.failed()),
            "restarted": len(before.keys() - after.keys()) + len(after.keys() - before.keys()),
            "leads_s": {"median": round(statistics.median(leads), 2), "max": round(max(leads), 2)},
            "decided_s": {
                "median": round(statistics.median(decided), 2),
                "max": round(max(decided), 2),
            },
            "limit_s": limit_s,
            "late": sum(s > limit_s for s in decided),
            "store_away": away,
        }


def good(found: dict[str, Any]) -> bool:
    away = found["store_away"]
    quiet = not away or (not away["led"] and not away["decided"] and away["new_epoch"])
    return quiet and not (found["failed"] or found["restarted"] or found["late"])


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=50)
    parser.add_argument("--lease", choices=["file", "etcd", "both"], default="both")
    parser.add_argument("--away", type=float, default=60.0, help="seconds without the store")
    given = parser.parse_args()
    kinds = ["file", "etcd"] if given.lease == "both" else [given.lease]
    found = [measured(kind, given.rounds, given.away) for kind in kinds]
    print(json.dumps(found, indent=2))
    return 0 if all(good(f) for f in found) else 1


if __name__ == "__main__":
    sys.exit(main())
