"""What some tests need of the box beyond Python, as marks that skip and say exactly what is missing.

Answers for: looking, once, without changing anything. `scripts/beds` installs what apt has.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def needs(*programs: str, root: bool = True) -> pytest.MarkDecorator:
    """Skips unless these programs are there, and we are root where that is asked for."""
    missing = [f"no {p}" for p in programs if shutil.which(p) is None]
    if root and os.geteuid() != 0:
        missing.append(f"uid {os.geteuid()} is not root")
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} (scripts/beds)")


def nspawn() -> pytest.MarkDecorator:
    """A machine with a systemd of its own, under a throw-away overlay."""
    if Path(__file__).resolve().is_relative_to("/tmp"):
        why = "the checkout is below /tmp, of which the machine and the units have one of their own"
        return pytest.mark.skip(reason=why)
    return needs("systemd-nspawn", "unshare", "nsenter", "systemd-analyze")
