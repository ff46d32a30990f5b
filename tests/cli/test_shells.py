"""TAB in real shells on a real terminal: names that control has now, quickly, and nothing at all when it is down."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scripts.generated import ROOT
from scripts.ports import free_port
from tests.beds import needs
from tests.cli.stub import serving

STATUS = {
    "models": [{"name": "coder-large", "aliases": ["default"]}, {"name": "qwen", "aliases": []}],
    "replicas": [{"replica": "coder-large-7k2"}],
    "nodes": [{"node": "box1", "gpus": []}],
}
DONE = "<ready>"
#: How each is begun without anybody's own settings, and told where the completions are.
SHELLS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        f"PS1='{DONE}'; source {ROOT}/completions/llmgw.bash",
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        f"PS1='{DONE}'; fpath=({ROOT}/completions $fpath); autoload -U compinit; compinit -u -D",
    ),
    "fish": (
        ["fish", "--no-config", "-i"],
        f"function fish_prompt; echo -n '{DONE}'; end; source {ROOT}/completions/llmgw.fish",
    ),
}
EVERY = [pytest.param(name, marks=needs(name, root=False)) for name in SHELLS]


class Terminal:
    """A shell with this terminal as its own."""

    def __init__(self, shell: str, env: dict[str, str]) -> None:
        words, setup = SHELLS[shell]
        self._fd, inner = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *words],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=env,
            cwd=env["HOME"],
        )
        os.close(inner)
        self.text = ""
        self.send(f"{setup}\n")
        self.send("echo be''gun\n")
        assert self.until("begun"), self.text

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, wanted: str, timeout_s: float = 15) -> bool:
        """Whether it is shown in time, from the last look on."""
        end = time.monotonic() + timeout_s
        while wanted not in self.text and time.monotonic() < end:
            if select.select([self._fd], [], [], 0.05)[0]:
                with suppress(OSError):
                    self.text += os.read(self._fd, 65536).decode(errors="replace")
        return wanted in self.text

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str, str], Terminal]]:
    made: list[Terminal] = []

    def opened(shell: str, url: str) -> Terminal:
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        more = {"TERM": "dumb", "LANG": "C.UTF-8", "COLUMNS": "200"}
        made.append(
            Terminal(shell, {"PATH": path, "HOME": str(tmp_path), "LLMGW_CONTROL": url, **more})
        )
        return made[-1]

    yield opened
    for one in made:
        one.close()


@pytest.mark.parametrize("shell", EVERY)
def test_tab_completes_a_model(shell: str, opened: Callable[[str, str], Terminal]) -> None:
    with serving() as stub:
        stub.answers["GET /api/v1/status"] = STATUS
        terminal = opened(shell, stub.url)
        terminal.send("llmgw wake co\t")
        assert terminal.until("coder-large"), terminal.text
        terminal.send("\x15llmgw drai\t")
        assert terminal.until("drain"), terminal.text


@pytest.mark.parametrize("shell", EVERY)
def test_tab_is_silent_with_control_down(
    shell: str, opened: Callable[[str, str], Terminal]
) -> None:
    terminal = opened(shell, f"http://127.0.0.1:{free_port()}")
    terminal.text = ""
    terminal.send("llmgw wake co\t")
    terminal.send("\x15echo it is o''ver\n")
    assert terminal.until("over"), terminal.text
    assert "rror" not in terminal.text
    assert "Traceback" not in terminal.text
    assert "llmgw:" not in terminal.text
