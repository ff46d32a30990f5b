"""Writes generated files, or checks that they are what would be written.

Answers for: one meaning of --check for every generator here. It may not know what is generated.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def stale(files: dict[Path, str]) -> list[str]:
    return [
        str(path.relative_to(ROOT))
        for path, text in files.items()
        if not path.exists() or path.read_text() != text
    ]


def settle(files: dict[Path, str], argv: list[str]) -> int:
    """Write what differs; with --check only name it and return 1."""
    differing = stale(files)
    if "--check" in argv:
        for name in differing:
            print(f"{name} is not what the code generates; run 'make docs'", file=sys.stderr)
        return 1 if differing else 0
    for path, text in files.items():
        if str(path.relative_to(ROOT)) in differing:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(path.relative_to(ROOT))
    return 0
