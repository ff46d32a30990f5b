"""Bytes that are kept: what the parsers of the gateway were once shown, and are shown again at each run.

Answers for: `corpus/NAME.txt`, one case a line: its name, a colon, and the bytes with Python's escapes. What a fuzzer
finds becomes a line there. It may not judge.
"""

from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")


def kept(name: str) -> dict[str, bytes]:
    lines = (FOLDER / f"{name}.txt").read_text(encoding="ascii").splitlines()
    cases = (line.partition(": ") for line in lines if line and not line.startswith("#"))
    return {
        case: text.encode().decode("unicode_escape").encode("latin-1") for case, _, text in cases
    }
