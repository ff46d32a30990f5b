"""A gateway that cannot serve says so before it opens anything."""

from pathlib import Path
from typing import Any

import pytest

from llmgw.errors import EXIT_USAGE, UsageError
from llmgw.gateway.settings import GatewaySettings, address
from llmgw.loopback import is_loopback

GOOD: dict[str, Any] = {
    "controls": ("http://127.0.0.1:8801",),
    "state_dir": Path("/x"),
    "listen": "127.0.0.1:8800",
}


def test_good_settings() -> None:
    GatewaySettings(**GOOD).check()
    GatewaySettings(**{**GOOD, "listen": None, "listen_fd": 3}).check()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"listen": None}, "listens on an address or on an inherited socket"),
        ({"listen_fd": 3}, "listens on an address or on an inherited socket"),
        ({"workers": 0}, "--workers 0 is not from 1 to 256"),
        ({"controls": ()}, "needs a control"),
        ({"controls": ("box1:8801",)}, "is not a URL of control"),
        ({"controls": ("http://box1:8801/path",)}, "is not a URL of control"),
        ({"listen": "8800"}, "is not HOST:PORT"),
        ({"listen": "box1:http"}, "is not HOST:PORT"),
        ({"listen": "box1:70000"}, "is not HOST:PORT"),
    ],
)
def test_what_cannot_work_is_refused_with_a_hint(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as e:
        GatewaySettings(**{**GOOD, **change}).check()
    assert e.value.hint
    assert e.value.exit_code == EXIT_USAGE


def test_addresses() -> None:
    assert address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert address("[::1]:8800") == ("::1", 8800)
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [is_loopback(h) for h in ("0.0.0.0", "::", "10.0.0.1", "box1")] == [False] * 4
