"""How a client's script tells what it tried: a line for each check, and its exit code. Of the standard library only."""

import sys
import traceback
from collections.abc import Callable

CHECKS: list[Callable[[], object]] = []


def check(function: Callable[[], object]) -> Callable[[], object]:
    CHECKS.append(function)
    return function


def main() -> int:
    failed = 0
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        try:
            function()
        except Exception:  # noqa: BLE001 - whatever an SDK raises is a finding
            failed += 1
            sys.stdout.write(f"FAIL {name}\n{traceback.format_exc(limit=-2)}\n")
        else:
            sys.stdout.write(f"ok {name}\n")
    return 1 if failed else 0
