"""One fleet of real processes for each test, and nothing of it left afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.fleet import Fleet
from tests.engines import llama
from tests.engines.running import FAKE

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
