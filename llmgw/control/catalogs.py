"""The catalog in use and the file it comes from: a file that does not parse never replaces a good one (F11, A58).

Answers for: the last good one, the reason when the file on disk is not it, the diff in the log. May not judge a change.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from llmgw import catalog as catalogs
from llmgw.control.crash import crash
from llmgw.control.story import Story
from llmgw.core import match
from llmgw.core.types.catalog import Catalog
from llmgw.errors import CatalogError, LlmgwError

#: So many replaced ones are known; and no more text is left in a lease store, which takes 1.5 MiB a request.
PASSED = 32
TEXT_BYTES = 256 << 10


class Used(Struct, frozen=True, kw_only=True):
    """The catalog that the last leader used. `passed`: digests of those before; who has one of them has an old file."""

    digest: str = ""
    sources: dict[str, str] = {}
    passed: tuple[str, ...] = ()


class Catalogs:
    """`error`: why the file is not what is in use, a line for each problem; "" while it is."""

    def __init__(self, path: Path, story: Story) -> None:
        self.path = path
        self.catalog = Catalog()
        self.sources: dict[str, str] = {}
        self.error = ""
        self.passed: tuple[str, ...] = ()
        self._story = story
        self._programs: tuple[Catalog, tuple[str, ...]] = (self.catalog, ())

    @property
    def programs(self) -> tuple[str, ...]:
        """What the profiles in use start, for agents to know an engine by."""
        if self._programs[0] is not self.catalog:
            self._programs = (self.catalog, match.programs(self.catalog))
        return self._programs[1]

    def read(self, text: str | None = None) -> tuple[Catalog, dict[str, str]]:
        """What is on disk now, or would be with this text; CatalogError with every problem."""
        sources = catalogs.read_source(self.path) if text is None else {str(self.path): text}
        return catalogs.load_sources(sources), sources

    def peek(self) -> Catalog:
        """What is on disk, or an empty one; for who has nothing to decide yet."""
        try:
            return self.read()[0]
        except CatalogError:
            return Catalog()

    @property
    def used(self) -> Used:
        """What the next leader has to know of it."""
        small = sum(len(text.encode()) for text in self.sources.values()) <= TEXT_BYTES
        sources = self.sources if small else {}
        return Used(digest=self.catalog.digest, sources=sources, passed=self.passed)

    def first(self, stored: dict[str, str], used: Used = Used()) -> None:  # noqa: B008 - frozen
        """At the start: the file (F34), unless it is one that was replaced elsewhere since; else the last good copy.

        Each host of several has a file of its own: an old one must not undo what was applied to another's.
        """
        self.passed = used.passed
        copies = [sources for sources in (used.sources, stored) if sources]
        try:
            self.catalog, self.sources = self.read()
        except CatalogError as e:
            if not any(self._copied(sources) for sources in copies):
                raise
            self.refused(e, "started with the last good one")
            return
        digest = self.catalog.digest
        if digest not in used.passed:
            self._pass(used.digest)
            return
        here = f"{self.path} is older than the catalog {used.digest[:12]} of the leader before"
        if any(self._copied(sources, used.digest) for sources in copies):
            self.error = f"{here}, which stays in use; put that file here too, or apply this one"
        else:
            self.error = f"{here}, whose text is not at hand, so it is used; check it"
        self._story.tell("catalog", self.error, level="warning")

    def _copied(self, sources: dict[str, str], digest: str = "") -> bool:
        """In use from here on, where it can be read and is the one of this digest."""
        try:
            found = catalogs.load_sources(sources)
        except CatalogError:
            return False
        if digest and found.digest != digest:
            return False
        self.catalog, self.sources = found, sources
        return True

    def _pass(self, digest: str) -> None:
        """It was in use, and is not any more."""
        now = self.catalog.digest
        self.passed = tuple(d for d in (*self.passed, digest) if d not in ("", now))[-PASSED:]

    def use(self, new: Catalog, sources: dict[str, str]) -> list[str]:
        """Swap to what was read, as one step; the changes, a sentence each."""
        crash("catalog_checked")
        changes = catalogs.diff(self.catalog, new)
        before = self.catalog.digest
        self.catalog, self.sources, self.error = new, sources, ""
        self._pass(before)
        for change in changes:
            self._story.tell(
                "catalog",
                change.sentence,
                effect=change.effect,
                model=change.model,
                profile=change.profile,
            )
        self._story.tell(
            "catalog", f"{self.path} is in use, {len(changes)} change{'s' * (len(changes) != 1)}"
        )
        return [change.sentence for change in changes]

    def write(self, text: str) -> str:
        """Put it on disk in one step, the old one beside it: a kill leaves the one or the other, whole.

        Where the old one is kept; "" where there was none.
        """
        path = self.path.resolve()
        old = path.with_name(f"{path.name}.bak") if path.exists() else None
        if path.is_dir():
            msg = f"control's catalog {self.path} is a folder, and one file was sent"
            hint = "copy the file there, then `llmgw catalog apply` without a file"
            raise LlmgwError(msg, hint, code="folder", status=409)
        try:
            if old:
                _replaced(old, path.read_bytes(), like=path)
            _replaced(path, text.encode(), like=path)
        except OSError as e:
            msg = f"cannot write the catalog {path}: {(e.strerror or str(e)).lower()}; the one in use stays"
            hint = "put the file there yourself, then `llmgw catalog apply` without a file"
            raise LlmgwError(msg, hint, code="not_written", status=409) from e
        return str(old or "")

    def refused(self, e: CatalogError, instead: str) -> None:
        self.error = "\n".join(e.problems)
        first, *more = e.problems
        why = f"the catalog is not taken, {instead}: {first}"
        self._story.tell("catalog", why, level="warning", problems=len(e.problems))
        for problem in more:
            self._story.log.warning(problem, kind="catalog")


def _replaced(path: Path, data: bytes, *, like: Path) -> None:
    """Who may read the old one may read the new one: it can hold secrets, and an agent's user may need it."""
    mode = like.stat().st_mode & 0o777 if like.exists() else 0o644
    made = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        with made.open("wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
