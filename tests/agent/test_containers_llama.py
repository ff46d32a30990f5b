"""A real llama-server in a container (test-beds.md 4): its image's entrypoint, its weights, its log, a real answer."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from llmgw.core.types.catalog import Stop
from scripts.engine import llama_server
from tests.agent.container_bed import NEEDED, Bed, Door, bed
from tests.agent.rig import Rig, until
from tests.engines import llama

pytestmark = NEEDED
IMAGE = "localhost/llama:1"


def libraries(program: Path) -> dict[str, Path]:
    """Where they are to be inside -> where they are: the system's at their places, its own beside it."""
    said = subprocess.check_output(["ldd", program], text=True)
    found = re.findall(r"=> (/\S+)|(/\S*ld-linux\S+)", said)
    paths = [Path(a or b) for a, b in found]
    own = {f"app/{p.name}": p for p in paths if p.parent == program.parent}
    return own | {str(p)[1:]: p for p in paths if p.parent != program.parent}


@pytest.fixture
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    program = Path(llama.usable(llama_server())[0])
    if program.name != "llama-server":
        pytest.skip(f"no llama-server that is a program of its own: {llama_server().why}")
    with bed(tmp_path_factory.mktemp("llama")) as made:
        files = {"app/llama-server": program, **libraries(program)}
        made.image(IMAGE, files, 'ENTRYPOINT ["/app/llama-server"]')
        yield made


@pytest.fixture
def rig(tmp_path: Path, podman: Bed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    Door(tmp_path, podman, monkeypatch)
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def test_it_loads_answers_is_adopted_and_stops(rig: Rig, podman: Bed) -> None:
    """Its template's program is the one that the image's entrypoint names; TERM ends it by itself, code 0."""
    rig.start_agent().registered()
    command = ("llama-server", "-m", "${weights}", "--port", "${port}", "--host", "${host}")
    shard = rig.ready(
        1,
        launcher="podman",
        image=IMAGE,
        engine="llama.cpp",
        weights=str(llama.model("boxed")),
        command=(*command, *llama.FLAGS),
        env={"LLAMA_API_KEY": "${api_key}"},
        stop=Stop(grace_s=20.0),
    )
    box = podman.box()
    (mount,) = box["Mounts"]
    assert (mount["Source"], mount["RW"]) == (str(llama.model("boxed")), False)
    rig.kill9().again()
    again = rig.control.shard("alpha-1/0", "ready")
    assert again["pid"] == shard["pid"] == box["State"]["Pid"]
    answer = httpx.post(
        f"{shard['endpoint']}{llama.CHAT}",
        json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
        headers={"Authorization": f"Bearer {rig.record()['api_key']}"},
        trust_env=False,
        timeout=30,
    )
    assert "hello from boxed" in answer.json()["choices"][0]["message"]["content"]
    rig.stop()
    rig.control.shard("alpha-1/0", "stopped")
    assert podman.boxes() == []
    until(lambda: "listening" in rig.engine_log(), "its words")
