"""A session at a shell, written down: what was typed, what it answered, how it ended; what varies has a name instead.

Answers for: one form of a transcript, and the comparison with the one recorded (TRANSCRIPTS=rewrite records anew).
It may not know what a session is about.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from llmgw import __version__
from scripts.fleet import Fleet, wait_for

FOLDER = Path(__file__).parent / "transcripts"
REWRITE = os.environ.get("TRANSCRIPTS") == "rewrite"
#: In this order. What is named here is another at each run and says nothing.
VARIES = (
    (re.compile(r"sha256:[0-9a-f]+"), "DIGEST"),
    (re.compile(r"\b1:[0-9a-f]{8}\b"), "FINGERPRINT"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\bsince \d\d:\d\d\b"), "since TIME"),
    (re.compile(r"\b(\d+d)?(\d+h)?(\d+m)?\d+s\b|\b\d+m(?= )"), "AGE"),
    (re.compile(r"\b\d+(\.\d+)? s\b"), "N s"),
    (re.compile(rf"\b{re.escape(__version__)}\b"), "VERSION"),
)
IDS = re.compile(r"\b([a-z][a-z0-9.]*)-([0-9a-z]{4})(?=[/\s:,;)@\"']|$)", re.MULTILINE)
PIDS = re.compile(r"\bpid (\d+)\b")
STRANGER = re.compile(r"(?:\? foreign .* pid |take over: \S+ \S+ [^:]*:)(\d+)\b")
OTHER = re.compile(r"\S+ +\S+ +(\d+) +\S+ ")
#: A pid or a port that stands alone; no answer of HTTP, no context, no watts.
NUMBERS = re.compile(
    r"(?<![\w.])(?<!RTX )(?!(?:200|404|503|16384|32768|65536)\b)\d{3,7}(?![\w.]| W|/-)"
)


class Session:
    """Of one task. `line` is given to bash with `llmgw`, and the fleet's addresses in the environment."""

    def __init__(self, fleet: Fleet, number: int, title: str, models: Iterable[str] = ()) -> None:
        self._fleet = fleet
        self.number = number
        self._text = f"# {number}. {title}\n"
        #: of strangers on this machine only these are shown: other tests' engines are, too
        self.mine: set[str] = set()
        self._models = frozenset(models)
        self._bin = fleet.folder / "bin"
        self._bin.mkdir(exist_ok=True)
        program = self._bin / "llmgw"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m llmgw "$@"\n')
        program.chmod(0o755)

    def run(self, line: str, *, shown: str = "") -> str:
        """Its stdout; `shown` is what is written down as typed, where that is not the same."""
        done = self._bash(line)
        self._text += f"\n$ {shown or line}\n{done.stdout}"
        self._text += "".join(f"2> {said}\n" for said in done.stderr.splitlines())
        if done.returncode:
            self._text += f"[exit {done.returncode}]\n"
        return done.stdout

    def once(self, line: str, pattern: str, timeout_s: float = 60.0) -> str:
        """The same as soon as it answers that."""
        wait_for(lambda: re.search(pattern, self._said(line)), f"{line}: {pattern}", timeout_s)
        return self.run(line)

    def tell(self, text: str) -> None:
        """What somebody did who is not at this shell, or what was seen elsewhere."""
        self._text += f"\n# {text}\n"

    def show(self, text: str) -> None:
        self._text += text if text.endswith("\n") else f"{text}\n"

    def _bash(self, line: str) -> subprocess.CompletedProcess[str]:
        env = self._fleet.env | {
            "PATH": f"{self._bin}:{os.environ['PATH']}", "GATEWAY": self._fleet.urls["gateway"], "HOME": str(self._bin),
        }  # fmt: skip
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], env=env, cwd=self._fleet.folder, capture_output=True, text=True,
            timeout=60, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    def _said(self, line: str) -> str:
        done = self._bash(line)
        return done.stdout + done.stderr

    # ------------------------------------------------------------ what varies

    def text(self) -> str:
        fleet = self._fleet
        text = "\n".join(self._ours(self._text.split("\n")))
        for part, url in fleet.urls.items():
            text = text.replace(url.rpartition(":")[2], f"{part.upper()}_PORT")
        text = text.replace(str(fleet.folder), "FOLDER").replace(sys.executable, "PYTHON")
        text = text.replace(str(Path(__file__).parents[2]), "CHECKOUT")
        for low, high in fleet.ranges:
            text = text.replace(f"{low}-{high}", "PORTS")
            ports = "|".join(map(str, range(low, high + 1)))
            text = re.sub(rf"\b(?:{ports})\b", "PORT", text)
        for pattern, name in VARIES:
            text = pattern.sub(name, text)
        return self._named(text)

    def _ours(self, lines: list[str]) -> Iterator[str]:
        """Without the strangers that are not of this session."""
        others = False
        for number, line in enumerate(lines):
            others = "NOT OURS" in line or (others and bool(OTHER.match(line)))
            if "NOT OURS" in line:
                rows = itertools.takewhile(OTHER.match, lines[number + 1 :])
                if not any(row.split()[2] in self.mine for row in rows):
                    continue
            found = OTHER.match(line) if others else STRANGER.match(line)
            if not found or found[1] in self.mine:
                yield line

    def _named(self, text: str) -> str:
        """The same number or name each time it comes; and no more blanks than part two columns."""
        for count, pid in enumerate(dict.fromkeys(PIDS.findall(text)), 1):
            text = re.sub(rf"\b{pid}\b", f"PID{count}", text)
        text = NUMBERS.sub("N", text)
        known: dict[str, str] = {}

        def name(found: re.Match[str]) -> str:
            if found[1] not in self._models:
                return found[0]
            number = sum(k.startswith(f"{found[1]}-") for k in known) + 1
            return known.setdefault(found[0], f"{found[1]}-ID{number}")

        text = IDS.sub(name, text)
        return "\n".join(re.sub(r" {2,}", "  ", line).rstrip() for line in text.split("\n"))

    def check(self, expected: Iterable[str]) -> None:
        """What the task is about is in it; and it is what was recorded."""
        text = self.text()
        for pattern in expected:
            assert re.search(pattern, text, re.MULTILINE), f"{pattern!r} is not in:\n{text}"
        file = next(FOLDER.glob(f"{self.number:02d}-*.txt"), None)
        if REWRITE:
            words = re.sub(r"[^a-z0-9]+", "-", text.partition("\n")[0].lower()).strip("-")
            target = FOLDER / f"{self.number:02d}-{words.partition('-')[2]}.txt"
            if file is not None and file != target:
                file.unlink()
            target.write_text(text)
            return
        assert file is not None, (
            f"task {self.number} has no transcript: TRANSCRIPTS=rewrite records it"
        )
        both = (file.read_text().splitlines(), text.splitlines())
        diff = "\n".join(difflib.unified_diff(*both, "recorded", "now", lineterm=""))
        assert not diff, f"{diff}\nTRANSCRIPTS=rewrite records it anew"
