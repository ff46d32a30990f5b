from collections.abc import Iterator

import pytest

from tests.cli.stub import Stub, serving


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """A control that says what a test tells it to, and that every verb asks."""
    with serving() as server:
        monkeypatch.setenv("LLMGW_CONTROL", server.url)
        yield server
