from __future__ import annotations

import sys
import time

from tests.model.explore import explore
from tests.model.rules import PLANTED, RIGHT, Rules
from tests.model.steps import Model
from tests.model.values import Faults


def main() -> None:
    lease, nodes, worlds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    faults = Faults(**{k: int(v) for k, v in (x.split("=") for x in sys.argv[4].split(",") if x)})
    rules = {**PLANTED, "right": RIGHT, "": Rules()}[sys.argv[5]]
    began = time.process_time()
    model = Model(lease, rules)
    found = explore(model, model.start(nodes, faults), worlds=worlds)
    print(found.told)
    print(found[:6], f"{time.process_time() - began:.1f} s CPU", len(model._known))


main()
