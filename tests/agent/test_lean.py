"""What an agent loads before control hears of its engines: half of a re-attach is the loading of modules (P7)."""

from __future__ import annotations

import subprocess
import sys

from tests.agent.rig import ROOT

START = "import sys; from llmgw import lean; lean.load('structlog'); import llmgw.agent.run; "
SHOWN = "rich", "click", "pygments", "httpx"
LATE = "starlette", "uvicorn"


def said(code: str) -> str:
    command = [sys.executable, "-c", START + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_agent_loads_nothing_that_it_does_not_show_and_its_server_late() -> None:
    assert said(f"print(sorted({{*{SHOWN + LATE!r}}} & set(sys.modules)))") == "[]"


def test_the_libraries_are_whole_afterwards() -> None:
    code = "import rich.console, httpx._main, structlog.dev, httpx; print(httpx.main, structlog.dev.rich)"
    assert "None" in said(code), "structlog goes on without rich"
    assert (
        said("from llmgw import lean; lean.load(); import click; print(click.__name__)") == "click"
    )
