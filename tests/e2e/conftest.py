"""One fleet of real processes for each test, and nothing of it left afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.fleet import Fleet
from tests.engines import llama
from tests.engines.running import FAKE
from tests.nursery import forked, nursery

Make = Callable[..., Fleet]


def counted(command: list[str], file: Path) -> list[str]:
    """The same command, which adds a line to `file` at each start; the shell becomes the engine."""
    return ["sh", "-c", f'echo start >> {file}; exec "$$0" "$$@"', *command]


def fake(*flags: str) -> list[str]:
    return [*FAKE, "--port", "${port}", *flags]


def tiny(name: str) -> list[str]:
    """A real llama-server with the tiny model that says ' hello from NAME.'."""
    return [*llama.server(name), "--host", "${host}", "--port", "${port}"]


def model(command: list[str], *, least: int = 1, **profile: Any) -> dict[str, Any]:
    one = {"name": "main", "command": command, "host_memory": "64MiB", **profile}
    return {"scaling": {"min": least, "max": 1}, "profiles": [one]}


def write_catalog(path: Path, models: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"version": 1, "models": models}, sort_keys=False))
    return path


@pytest.fixture(autouse=True, scope="session")
def nursed() -> Iterator[None]:
    """What is started is forked by one that has read the code: else reading it is half of what a test costs."""
    executed, asked = Fleet.execute, Fleet.llmgw

    def fork(fleet: Fleet, part: str) -> Any:
        words = fleet.words(part)
        if words[0] not in {"control", "agent"} or not forked(fleet.env):
            return executed(fleet, part)
        return nursery().start(words, fleet.env, fleet.log(part))

    def llmgw(fleet: Fleet, *words: object, timeout_s: float = 60) -> Any:
        if not forked(fleet.env):
            return asked(fleet, *words, timeout_s=timeout_s)
        return nursery().run([str(word) for word in words], fleet.env, timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "execute", fork)
        patch.setattr(Fleet, "llmgw", llmgw)
        yield


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """`make(models)` writes the catalog and names the addresses; it starts nothing."""
    made: list[Fleet] = []

    def build(models: dict[str, Any]) -> Fleet:
        folder = tmp_path / f"fleet{len(made)}"
        folder.mkdir()
        fleet = Fleet(folder, write_catalog(folder / "catalog.yaml", models))
        made.append(fleet)
        return fleet

    yield build
    for fleet in made:
        fleet.close()
