"""Which lease the control of an inventory has, for whoever writes into that file with no control running.

Answers for: a word beside the inventory, written when control starts, also one that has never led. A hint for people's
commands: nothing of control reads it, and where it cannot be written nothing else is kept from working.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

SUFFIX = ".lease"


def note(inventory: Path, name: str) -> None:
    path = _beside(inventory)
    with suppress(OSError):
        if name == "file":  # as where no control has run: the inventory alone is what counts
            path.unlink(missing_ok=True)
            return
        aside = path.with_name(f"{path.name}.new")
        aside.write_text(f"{name}\n")
        aside.chmod(0o644)
        aside.replace(path)


def elsewhere(inventory: Path) -> str:
    """The lease store in which what the inventory has is kept too, and by which the next leader goes; "" for none."""
    try:
        return _beside(inventory).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _beside(inventory: Path) -> Path:
    """The same for all names of one file; and no other inventory's in the same folder."""
    real = inventory.resolve()
    return real.with_name(real.name + SUFFIX)
