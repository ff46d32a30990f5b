"""The catalog in use and the file it comes from: a file that does not parse never replaces a good one (F11, A58).

Answers for: the last good one, the reason when the file on disk is not it, the diff in the log. May not judge a change.
"""

from __future__ import annotations

from pathlib import Path

from llmgw import catalog as catalogs
from llmgw.control.story import Story
from llmgw.core.types.catalog import Catalog
from llmgw.errors import CatalogError


class Catalogs:
    """`error`: why the file is not what is in use, a line for each problem; "" while it is."""

    def __init__(self, path: Path, story: Story) -> None:
        self.path = path
        self.catalog = Catalog()
        self.sources: dict[str, str] = {}
        self.error = ""
        self._story = story

    def read(self) -> tuple[Catalog, dict[str, str]]:
        """What is on disk now; CatalogError with every problem."""
        sources = catalogs.read_source(self.path)
        return catalogs.load_sources(sources), sources

    def first(self, stored: dict[str, str]) -> None:
        """At the start: the file, else the last good copy, else CatalogError."""
        try:
            self.catalog, self.sources = self.read()
        except CatalogError as e:
            if not stored:
                raise
            try:
                self.catalog, self.sources = catalogs.load_sources(stored), stored
            except CatalogError:
                raise e from None
            self._refused(e, "started with the last good one")

    def reload(self) -> None:
        """Swap to the file as one step, or keep what is in use and raise CatalogError."""
        try:
            new, sources = self.read()
        except CatalogError as e:
            self._refused(e, "the one in use stays")
            raise
        changes = catalogs.diff(self.catalog, new)
        self.catalog, self.sources, self.error = new, sources, ""
        for change in changes:
            self._story.tell(
                "catalog",
                change.sentence,
                effect=change.effect,
                model=change.model,
                profile=change.profile,
            )
        self._story.tell("catalog", f"{self.path} is in use, {len(changes)} changes")

    def _refused(self, e: CatalogError, instead: str) -> None:
        self.error = "\n".join(e.problems)
        first, *more = e.problems
        why = f"the catalog is not taken, {instead}: {first}"
        self._story.tell("catalog", why, level="warning", problems=len(e.problems))
        for problem in more:
            self._story.log.warning(problem, kind="catalog")
