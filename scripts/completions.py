"""Writes completions/ for bash, zsh and fish out of the command line itself.

Answers for: files that a package can install as they are. It may not add to what the program says.

    python -m scripts.completions [--check]
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from scripts.generated import ROOT, settle

SHELLS = {"bash": "llmgw.bash", "zsh": "_llmgw", "fish": "llmgw.fish"}


def script(shell: str) -> str:
    env = {**os.environ, "_LLMGW_COMPLETE": f"source_{shell}"}
    command = [sys.executable, "-m", "llmgw"]
    said = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    text = said.stdout.strip() + "\n"
    return for_fpath(text) if shell == "zsh" else text


def for_fpath(text: str) -> str:
    """The zsh script as a file of $fpath.

    It comes as something to source: compinit wants `#compdef` on the very first line, and a file it
    autoloads is the body of the function, so the last line must complete, not register.
    """
    fixed, count = re.subn(r"compdef (_llmgw_completion) llmgw\n\Z", r'\1 "$@"\n', text)
    assert count == 1, f"the zsh script no longer ends in its compdef line: {text[-120:]!r}"
    return fixed


def files() -> dict[Path, str]:
    return {ROOT / "completions" / name: script(shell) for shell, name in SHELLS.items()}


if __name__ == "__main__":
    sys.exit(settle(files(), sys.argv[1:]))
