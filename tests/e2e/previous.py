"""llmgw as it was one release before, out of this repository's own history: what an upgrade starts from.

Answers for: the sources of `COMMIT` in build/beds, under a version of their own, run by this Python and its packages
(the locks are the same); a skip that says what is missing. 0.1.0 is not released yet, so the commit is the last one
before leases, drains and sleep; from its release on it is the tag of the release before. It may not change the work
tree.
"""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "5c01925c"
VERSION = "0.0.9"
FOLDER = ROOT / "build" / "beds" / f"previous-{COMMIT}"


def sources() -> Path:
    """What goes on PYTHONPATH; fetched from history if need be. Skips where that is not deep enough."""
    if FOLDER.exists():
        return FOLDER
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", COMMIT, "llmgw"], capture_output=True, check=False
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[:200]
        pytest.skip(f"no previous llmgw: git has no {COMMIT} here, a shallow clone? ({said})")
    made = FOLDER.with_suffix(".new")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(made, filter="data")
    about = made / "llmgw" / "__init__.py"
    about.write_text(
        about.read_text().replace('__version__ = "0.1.0"', f'__version__ = "{VERSION}"')
    )
    assert VERSION in about.read_text()
    made.rename(FOLDER)
    return FOLDER
