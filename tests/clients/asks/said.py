"""What clients' scripts share: how one tells what it tried (a line for each check, and its exit code), and what
OpenAI's way of asking is tried with. Of the standard library only."""

import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E", bound=Exception)

ASK = [{"role": "user", "content": "Say hello."}]
WEATHER = [{"role": "user", "content": "What is the weather in Rome?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}
CHECKS: list[Callable[[], object]] = []


def check(function: Callable[[], object]) -> Callable[[], object]:
    CHECKS.append(function)
    return function


def raised(kind: type[E], call: Callable[[], object]) -> E:
    try:
        call()
    except kind as e:
        return e
    msg = f"no {kind.__name__}"
    raise AssertionError(msg)


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
