"""Files and texts to a checked `Catalog`, or every problem at once."""

from __future__ import annotations

import hashlib
from pathlib import Path

from llmgw.catalog import keys
from llmgw.catalog.build import build
from llmgw.catalog.read import Reader, Section
from llmgw.catalog.source import MAX_CHARS, GiveUp, Pos, Problems, compose, position
from llmgw.catalog.words import quoted
from llmgw.core.types.catalog import Catalog
from llmgw.errors import CatalogError

#: The most that so many characters can take.
MAX_BYTES = 4 * MAX_CHARS


def load(path: Path) -> Catalog:
    """A file, or a directory of *.yaml merged in name order."""
    return load_sources(read_source(path))


def loads(text: str, name: str = "catalog.yaml") -> Catalog:
    """A stored or posted text; `name` stands in its messages."""
    return load_sources({name: text})


def load_sources(sources: dict[str, str]) -> Catalog:
    """What `read_source` gave, now or when it was stored."""
    problems = Problems()
    try:
        catalog = _loaded(sorted(sources.items()), problems)
    except GiveUp:
        catalog = None
    if problems or catalog is None:
        raise CatalogError(problems.texts())
    return catalog


def read_source(path: Path) -> dict[str, str]:
    """The text of each file by its name, as `load_sources` takes it."""
    problems = Problems()
    try:
        texts = {str(file): _text(file, problems) for file in _files(path)}
    except OSError as error:
        raise CatalogError((_unreadable(path, error),)) from error
    if problems:
        raise CatalogError(problems.texts())
    return texts


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(
        file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")
    )
    other = [file for file in files if file.suffix == ".yml"]
    if other:
        raise CatalogError(
            tuple(f"{file}: not read, its name ends in .yml - rename it to .yaml" for file in other)
        )
    files = [file for file in files if file.suffix == ".yaml"]
    if not files:
        raise CatalogError(
            (f"{path}: no *.yaml in this directory - put a catalog there, or name a file",)
        )
    return files


def _text(file: Path, problems: Problems) -> str:
    """Not more than is parsed anyway: `file` may be a model by mistake."""
    with file.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        problems.add(Pos(str(file)), f"more than {MAX_BYTES} bytes", "is this a catalog at all?")
        return ""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", errors="replace")
        at = position(before, len(before), str(file))
        problems.add(at, f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8")
        return ""


def _unreadable(path: Path, error: OSError) -> str:
    file = error.filename or path
    hints = {
        FileNotFoundError: "check the path, or let `llmgw init` write a first one",
        PermissionError: f"give this user the right to read it: chmod +r {file}",
    }
    reason = (error.strerror or "cannot be read").lower()
    return f"{file}: {reason} - {hints.get(type(error), 'check the path and the disk')}"


def _loaded(sources: list[tuple[str, str]], problems: Problems) -> Catalog | None:
    if not sources:
        problems.add(Pos("catalog"), "nothing to read", "give a file, or a directory of *.yaml")
        return None
    sections = []
    for name, text in sources:
        node = compose(text, name, problems)
        if node is not None:
            sections.append(Reader(problems).section(node, keys.CatalogFile))
    # With a file missing from the picture, what it defines would be reported as unknown all over the others.
    if len(sections) < len(sources):
        return None
    digest = hashlib.sha256("\0".join(text for _, text in sources).encode())
    return build(_merged(sections, problems), digest.hexdigest(), problems)


def _merged(sections: list[Section], problems: Problems) -> Section:
    """One section of all files. Nothing may be said in two of them, since no order of them is the right one."""
    whole = Section(keys.CatalogFile, Pos(sections[0].at.file), "")
    for section in sections:
        whole.values.setdefault("version", section.values.get("version"))
        if "defaults" in section.values:
            empty = Section(keys.Defaults, section.where("defaults"), "defaults")
            _join_defaults(
                whole.values.setdefault("defaults", empty), section.values["defaults"], problems
            )
        for kind in ("circuits", "engines", "models"):
            known = whole.values.setdefault(kind, {})
            for name, one in section.values.get(kind, {}).items():
                if name in known:
                    what = f"{kind[:-1]} {quoted(name)} is in two files"
                    problems.add(one.at, what, f"the other is {known[name].at.text}: take one out")
                else:
                    known[name] = one
    return whole


def _join_defaults(into: Section, more: Section, problems: Problems) -> None:
    for key, at in more.keys.items():
        if key in into.keys:
            what = f"defaults.{key} is in two files"
            problems.add(at, what, f"the other is {into.keys[key].text}: take one out")
        else:
            into.keys[key] = at
            if key in more.values:
                into.values[key] = more.values[key]
