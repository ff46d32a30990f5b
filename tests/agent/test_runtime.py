"""A container runtime that answers nonsense, nothing, or dies: then nothing is known, not "there is none" (F45)."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from llmgw.agent import container_evidence as evidence
from llmgw.agent import runtime
from llmgw.agent.runtime import AwayError, Box, Image, Runtime

BOX = '{"Id": "a", "State": {"Status": "running", "Pid": 7}, "Config": {"Labels": null, "Cmd": "x y"}}'
AWAY = {
    "garbage": ("echo a", "echo 'WARNING: what is this'"),
    "half": ("echo a", f"echo '[{BOX}, '"),
    "null": ("echo a", "echo null"),
    "another shape": ("echo a", "echo '[{\"Id\": 7}]'"),
    "no text": ("echo a", r"printf '\377\376['"),
    "it dies": ("echo a", "kill -9 $$"),
    "it refuses": ("echo a", "echo 'Error: database is locked' >&2; exit 125"),
    "it refuses to list": ("echo 'Error: no space' >&2; exit 125", "echo '[]'"),
    "it dies while it lists": ("kill -9 $$", "echo '[]'"),
    "it hangs": ("echo a", "exec sleep 60"),
    "it hangs and is deaf": ("echo a", "trap '' TERM INT; while :; do sleep 0.1; done"),
}


class Pod:
    """A program called podman that does one thing for `ps` and another for `inspect` and `image`."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "podman"

    def says(self, listing: str, inspecting: str = "true") -> Pod:
        cases = f"case $1 in ps) {listing};; *) {inspecting};; esac"
        self.program.write_text(f"#!/bin/sh\n{cases}\n")
        self.program.chmod(0o755)
        return self

    def boxes(self) -> list[Box]:
        return asyncio.run(evidence.ours(Runtime("podman"), {"llmgw.node": "n"}, {}))

    def image(self) -> Image | None:
        return asyncio.run(Runtime("podman").image("a:1"))


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(Runtime.call, "__kwdefaults__", {**KEYS, "timeout_s": 0.5})
    return Pod(tmp_path)


KEYS = dict(Runtime.call.__kwdefaults__ or {})


@pytest.mark.parametrize("why", AWAY)
def test_what_is_no_answer_is_none(pod: Pod, why: str) -> None:
    pod.says(*AWAY[why])
    began = time.monotonic()
    with pytest.raises(AwayError):
        pod.boxes()
    assert time.monotonic() - began < 30.0


def test_one_that_is_removed_between_both_questions_is_no_trouble(pod: Pod) -> None:
    gone = "echo '[]'; echo 'Error: no such object: a' >&2; exit 125"
    assert pod.says("echo a", gone).boxes() == []
    (box,) = pod.says("echo a; echo b", f"echo '[{BOX}]'; {gone.partition(';')[2]}").boxes()
    assert (box.id, box.pid, box.argv) == ("a", 7, ("x", "y"))


@pytest.mark.parametrize("garbage", ["echo '<html>'", "echo '[1]'", "echo '\"a\"'"])
def test_an_image_that_is_told_in_no_known_words_is_not_known(pod: Pod, garbage: str) -> None:
    """Taken for one without an entrypoint another program would be started."""
    with pytest.raises(AwayError, match="podman image inspect answers what cannot be read"):
        pod.says("true", garbage).image()


def test_an_image_without_any_settings_has_none(pod: Pod) -> None:
    assert pod.says("true", "echo null").image() == Image(())
    assert pod.says("true", "echo 'Error: no such image' >&2; exit 1").image() is None


def test_a_label_that_somebody_wrote_is_no_number_for_long() -> None:
    """Python refuses numbers of more than 4300 digits, and with that the agent would end."""
    for text in ("9" * 5000, "-1", "²", "", "1e3"):
        labels = {"llmgw.attempt": text}
        assert evidence.attempt_of(box(labels)) == 0
    assert evidence.attempt_of(box({"llmgw.attempt": "12"})) == 12


def box(labels: dict[str, str]) -> Box:
    return Box(
        kind="podman",
        id="a",
        status="running",
        pid=1,
        exit_code=0,
        out_of_memory=False,
        labels=labels,
        env={},
        argv=(),
        image="a:1",
        image_id="i",
    )


def test_the_words_of_one_that_never_stops_are_bounded(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "WORDS_BYTES", 1000)
    with pytest.raises(AwayError, match="cannot be read"):
        pod.says("echo a", "head -c 100000 /dev/zero | tr '\\0' '['").boxes()
