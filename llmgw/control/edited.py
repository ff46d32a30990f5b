"""Whether the catalog on disk is another than the one in use: control takes a file over at a word only.

Answers for: one sentence for `status`. By the time of a file, which is asked for when somebody looks; it is read again
only where that has changed. May not take anything over, nor wait for a disk: one on a network may hang.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from llmgw import catalog as catalogs
from llmgw.control.catalogs import Catalogs
from llmgw.core.types.catalog import Catalog
from llmgw.errors import CatalogError

#: However many look, as pages and `status --watch` do, the disk is asked so often at most.
EVERY_S = 0.2
#: And waits so long for it.
PATIENCE_S = 0.5
#: How to look, and what takes it over.
THEN = "`llmgw adopt --dry-run` shows what comes of it, `llmgw catalog apply` takes it"

#: The catalog, and what is said to be wrong with the file.
Using = tuple[Catalog, str]
#: By name: when it was written, how long it is, and which file it is.
Stamps = tuple[tuple[str, int, int, int], ...]


class _Found(NamedTuple):
    using: Using
    stamps: Stamps | None
    said: str


class Edited:
    def __init__(self, of: Catalogs, clock: Callable[[], float]) -> None:
        self._of = of
        self._clock = clock
        self._next_s = 0.0
        self._look: asyncio.Future[_Found] | None = None
        self._found = _Found((Catalog(), ""), None, "")

    async def look(self) -> str:
        """What is known by now."""
        now, using = self._clock(), (self._of.catalog, self._of.error)
        if self._look is None and (now >= self._next_s or self._found.using != using):
            self._next_s = now + EVERY_S
            self._look = self._begun(using)
        look = self._look
        if look is not None:
            await asyncio.wait({look}, timeout=PATIENCE_S)
            if look.done():  # and of all who waited for it the last finds the same
                try:
                    self._found = look.result()
                finally:
                    self._look = None if self._look is look else self._look
        # A catalog that was taken over meanwhile makes it void.
        return self._found.said if self._found.using == (self._of.catalog, self._of.error) else ""

    def _begun(self, using: Using) -> asyncio.Future[_Found]:
        """In a thread that control does not wait for when it ends, as it would for one of an executor."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[_Found] = loop.create_future()
        sources = self._of.sources

        def run() -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                try:
                    read = self._read(using, sources)
                except Exception as e:  # noqa: BLE001 - whoever looks gets it
                    loop.call_soon_threadsafe(found.set_exception, e)
                else:
                    loop.call_soon_threadsafe(found.set_result, read)

        threading.Thread(target=run, name="catalog-look", daemon=True).start()
        return found

    def _read(self, using: Using, sources: dict[str, str]) -> _Found:
        """In a thread, one at a time."""
        stamps = _stamps(self._of.path)
        if (using, stamps) == (self._found.using, self._found.stamps):
            return self._found
        try:
            texts = catalogs.read_source(self._of.path)
            if list(texts.values()) == list(sources.values()):
                return _Found(using, stamps, "")
            new = catalogs.load_sources(texts)
        except CatalogError as e:
            return _Found(using, stamps, "" if using[1] else self._broken(e.problems))
        said = self._other(using, new, len(catalogs.diff(using[0], new)))
        return _Found(using, stamps, said)

    def _broken(self, problems: tuple[str, ...]) -> str:
        first, *more = problems
        rest = f" (and {len(more)} more)" if more else ""
        return (
            f"the catalog was edited since it was applied, and cannot be used as it is: {first}{rest}; "
            "the one in use stays"
        )

    def _other(self, using: Using, new: Catalog, changes: int) -> str:
        """With several hosts a start takes no file that was replaced before: it may be the old one of this host."""
        old = new.digest in self._of.passed
        then = THEN if old else f"{THEN}, as a restart does"
        if using[1]:
            # That it is old is what was said of it then.
            refused = "the catalog was edited since it was refused, and can be used now"
            return "" if old else f"{refused}: {then}"
        if not changes:
            return ""  # a remark, or the same in other words
        count = f"{changes} change{'s are' if changes > 1 else ' is'}"
        return f"the catalog was edited since it was applied, {count} not in use: {then}"


def _stamps(path: Path) -> Stamps:
    """Of each file that would be read; none of what cannot be looked at."""
    try:
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        stats = [(str(file), file.stat()) for file in files]
    except OSError:
        return ()
    return tuple((name, s.st_mtime_ns, s.st_size, s.st_ino) for name, s in stats)
