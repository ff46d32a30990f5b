"""What this box has: programs that serve models, and weights on its disks.

Bounded in depth and number of files, so that a disk full of them takes seconds. May not read more than a header.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from llmgw.catalog.first import gguf

#: Where people and tools keep weights: llama.cpp, LM Studio and Hugging Face, and a disk of one's own.
FOLDERS = ("/models", "/mnt/models", "/srv/models", "~/models", "~/.cache/llama.cpp", "~/.lmstudio/models",
           "~/.cache/huggingface/hub")  # fmt: skip
#: Engine -> its program, as it is called by who built it; the first of a folder is taken.
PROGRAMS = {
    "llama.cpp": (
        "llama-server",
        *(f"llama-server-{by}" for by in ("cuda", "rocm", "vulkan", "cpu")),
    ),
    "vllm": ("vllm",),
    "ollama": ("ollama",),
}
#: Beside PATH, in this order: where people, package managers and a build of one's own put programs.
PLACES = ("~/.local/bin", "/usr/local/bin", "~/llama.cpp/build/bin", "~/src/llama.cpp/build/bin", "~/llama.cpp",
          "/opt/llama.cpp/build/bin", "/opt/llama.cpp/bin", "/opt/llama.cpp", "/opt/bin", "/opt/vllm/bin",
          "/home/linuxbrew/.linuxbrew/bin", "/snap/bin")  # fmt: skip
_MAX_DEPTH, _MAX_ENTRIES = 6, 50_000
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class Weights(Struct, frozen=True):
    """One model on a disk. `header` None for a folder of safetensors; `trouble`: why it cannot be used as it is."""

    path: str
    name: str
    size_bytes: int
    header: gguf.Header | None = None
    projector: str = ""
    trouble: str = ""


class Box(Struct, frozen=True):
    """`programs`: engine -> path; `folders`: those that were looked through."""

    programs: dict[str, str]
    weights: tuple[Weights, ...]
    folders: tuple[str, ...]


def looked(folders: Iterable[Path] = (), places: Iterable[Path] | None = None) -> Box:
    """`folders` replace the usual ones for weights, `places` those for programs."""
    # In a catalog a path holds for agents, which run in other folders than whoever types this.
    given = [f.expanduser().absolute() for f in folders]
    given = given or [*(Path(f).expanduser() for f in FOLDERS), *_packaged()]
    there = [f for f in given if f.is_dir()]
    found: dict[str, Weights] = {}
    for folder in there:
        for weights in _below(folder):
            found.setdefault(os.path.realpath(weights.path), weights)
    kept = sorted(found.values(), key=lambda w: (w.name, w.path))
    return Box(
        _programs(usual() if places is None else places), tuple(kept), tuple(map(str, there))
    )


def usual() -> list[Path]:
    """PATH, the usual folders, and those of the Python that runs this, whose packages may carry a program."""
    path = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    own = [Path(sysconfig.get_path("scripts")), *sorted(_packages().glob("*/bin"))]
    return [*path, *(Path(p).expanduser() for p in PLACES), *own]


def _packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _packaged() -> list[Path]:
    """Packages of this Python that carry weights."""
    return sorted({file.parent for file in _packages().glob("*/*.gguf")})


def _programs(places: Iterable[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for place in places:
        for engine, names in PROGRAMS.items():
            path = next(filter(None, (shutil.which(name, path=str(place)) for name in names)), None)
            if path and engine not in found:
                found[engine] = str(Path(path).absolute())
    return found


def _below(folder: Path) -> Iterator[Weights]:
    entries = 0
    for place, folders, files in os.walk(folder, followlinks=True):
        entries += len(files) + len(folders)
        if entries > _MAX_ENTRIES:
            return
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = [] if depth >= _MAX_DEPTH else sorted(f for f in folders if f != "blobs")
        yield from _of_folder(Path(place), sorted(files))


def _of_folder(place: Path, files: list[str]) -> Iterator[Weights]:
    models: list[Weights] = []
    projectors: list[Weights] = []
    for name in files:
        part = _PART.search(name)
        if not name.endswith(".gguf") or (part and int(part[1]) != 1):
            continue
        weights = _gguf(place / name, int(part[2]) if part else 1)
        (projectors if weights.header and weights.header.kind == "projector" else models).append(
            weights
        )
    for weights in models:
        if len(projectors) == 1 and weights.header and weights.header.kind == "chat":
            yield Weights(weights.path, weights.name, weights.size_bytes + projectors[0].size_bytes,
                          weights.header, projectors[0].path, weights.trouble)  # fmt: skip
        else:
            yield weights
    shards = [f for f in files if f.endswith(".safetensors")]
    if shards and "config.json" in files and "adapter_config.json" not in files:
        yield Weights(str(place), _hub_name(place), sum(_size(place / f) for f in shards))


def _gguf(path: Path, parts: int) -> Weights:
    name = _PART.sub(".gguf", path.name).removesuffix(".gguf")
    try:
        header = gguf.read(path)
    except (OSError, gguf.GgufError) as e:
        why = getattr(e, "strerror", None) or str(e)
        return Weights(str(path), name, _size(path), trouble=why)
    files = [path]
    if parts > 1:
        files = [
            path.with_name(_PART.sub(f"-{n:05}-of-{parts:05}.gguf", path.name))
            for n in range(1, parts + 1)
        ]
    missing = [f.name for f in files if not f.exists()]
    trouble = f"{missing[0]} is missing" if missing else ""
    return Weights(str(path), name, sum(_size(f) for f in files), header, trouble=trouble)


def _hub_name(place: Path) -> str:
    """`models--OWNER--NAME/snapshots/HASH` of the hub's cache is NAME."""
    for part in reversed(place.parts):
        if part.startswith("models--"):
            return part.rpartition("--")[2]
    return place.name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
