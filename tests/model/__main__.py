"""Look at more worlds than the tests do: `python -m tests.model --faults lapses=2,again=1 --depth 30`.

Prints the shortest way to a broken law, or how many worlds hold; ends with 1 where a law is broken.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.explore import explore
from tests.model.rules import PLANTED, Rules
from tests.model.steps import LEASES, Model
from tests.model.values import Faults


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    asked.add_argument("--lease", choices=sorted(LEASES), default="etcd")
    asked.add_argument("--nodes", type=int, default=1)
    asked.add_argument("--controls", type=int, choices=(1, 2, 3), default=2)
    asked.add_argument("--running", action="store_true", help="begin with one engine running")
    asked.add_argument("--faults", default="lapses=1", help=f"of {', '.join(Faults._fields)}")
    asked.add_argument("--planted", choices=sorted(PLANTED), help="with this rule taken out")
    asked.add_argument("--depth", type=int, default=10**9)
    asked.add_argument("--worlds", type=int, default=10**9)
    said = asked.parse_args()
    pairs = (pair.split("=") for pair in said.faults.split(",") if pair)
    faults = Faults(**{name: int(count) for name, count in pairs})
    rules = PLANTED[said.planted] if said.planted else Rules()
    model = Model(said.lease, rules, said.controls)
    world = (model.running if said.running else model.start)(said.nodes, faults)
    began = time.process_time()
    found = explore(model, world, depth=said.depth, worlds=said.worlds)
    took = f"{time.process_time() - began:.1f} s of CPU"
    all_of_them = "all there are" if found.whole else "there are more"
    told = (
        f"{found.worlds} worlds ({all_of_them}), {found.steps} steps, depth {found.depth}, {took}"
    )
    sys.stdout.write(f"{found.told}\n{told}\n".lstrip("\n"))
    return bool(found.wrong)


sys.exit(main())
