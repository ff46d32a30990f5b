"""`--advertise`: where the other controls and the gateways find one that listens on every address."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.config import Address
from llmgw.control.listen import advertised
from llmgw.control.settings import ControlSettings
from llmgw.errors import UsageError


def settings(advertise: str) -> ControlSettings:
    return ControlSettings(catalog=Path("c"), state_dir=Path("s"), advertise=advertise)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("10.0.0.5", "http://10.0.0.5:8801"),
        ("10.0.0.5:9000", "http://10.0.0.5:9000"),
        ("box1.lan", "http://box1.lan:8801"),
        ("[fd00::5]", "http://[fd00::5]:8801"),
        ("[fd00::5]:9000", "http://[fd00::5]:9000"),
        ("fd00::5", "http://[fd00::5]:8801"),
    ],
)
def test_it_is_what_others_are_told(given: str, url: str) -> None:
    made = settings(given)
    made.check()
    told = made.advertised(8801)
    assert told is not None
    assert told.url == url


@pytest.mark.parametrize("given", ["0.0.0.0", "[::]:8801", "box1:port", "box1:99999", ":8801"])
def test_what_nobody_can_reach_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="--advertise"):
        settings(given).check()


def test_without_it_the_address_that_is_listened_on_is_told() -> None:
    assert settings("").advertised(8801) is None
    assert advertised(Address("10.0.0.5", 8801), "file") == "http://10.0.0.5:8801"
    assert advertised(Address("0.0.0.0", 8801), "file") == "http://127.0.0.1:8801"
    spec = "etcd://127.0.0.1:2379"
    assert advertised(Address("0.0.0.0", 8801), spec) == "http://127.0.0.1:8801"
