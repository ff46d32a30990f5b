"""Before the first part of `llmgw up`, and after one that failed: whose a port is, and which gateway is ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.cli import ask, first
from llmgw.errors import LlmgwError, first_words
from scripts.fleet import wait_for
from scripts.ports import free_port

#: Stands in for a gateway: its command line is what tells.
IDLE = "import time; time.sleep(600)"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "llmgw.py").write_text(IDLE)
    return folder


@pytest.fixture
def gateway(tmp_path: Path, module: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "llmgw", "gateway", "--state-dir", str(tmp_path / "gateway")]
    process = subprocess.Popen(words, cwd=module)
    yield process
    process.kill()
    process.wait()


def nobody() -> ask.Peer:
    return ask.Peer("gateway", f"http://127.0.0.1:{free_port()}", "", "")


def test_a_port_of_another_is_named_with_the_flag_of_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "LEAVING_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        peer = ask.Peer("agent", f"http://127.0.0.1:{port}", "", "")
        with pytest.raises(LlmgwError, match=f"the agent cannot listen on .*:{port}") as caught:
            first.free(peer, "the agent", "--agent")
    assert "--agent HOST:PORT" in caught.value.hint
    first.free(peer, "the agent", "--agent")


def test_what_control_started_under_it_is_ended(
    tmp_path: Path, gateway: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = first.Brought(tmp_path / "gateway")
    monkeypatch.setattr(first, "_gateways", lambda _folder: [])
    brought.begin(nobody())
    monkeypatch.undo()
    wait_for(lambda: first._gateways(tmp_path / "gateway") == [gateway.pid], "a gateway")
    brought.look(os.getpid())
    assert brought.end() == "the gateway that this `llmgw up` had started has ended too"
    assert gateway.wait(60) < 0


def test_one_that_was_there_before_or_is_anothers_stays(
    tmp_path: Path, gateway: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(lambda: first._gateways(tmp_path / "gateway") == [gateway.pid], "a gateway")
    before = first.Brought(tmp_path / "gateway")
    before.begin(nobody())
    before.look(os.getpid())
    assert before.end() == ""
    # Started since, by a control that is not ours, or is gone: it is said.
    since = first.Brought(tmp_path / "gateway")
    monkeypatch.setattr(first, "_gateways", lambda _folder: [])
    since.begin(nobody())
    monkeypatch.undo()
    since.look(os.getppid())
    assert f"(pid {gateway.pid})" in since.end()
    assert f"`kill {gateway.pid}` ends it" in since.end()
    assert gateway.poll() is None


def test_an_answer_in_nobodys_form_is_one_short_line() -> None:
    page = b"<!DOCTYPE HTML>\n<style>body {}</style><h1>Error\n response</h1><p>Error code: 501</p>"
    assert first_words(page + b"<br>" * 400) == "Error response Error code: 501"
    assert len(first_words(b"word " * 400)) <= 100
    assert first_words(b"a < b") == "a < b"
