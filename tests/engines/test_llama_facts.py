"""What the built-in engine `llama.cpp` relies on, asked of a real llama-server; a new build that differs fails here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.agent.compute import parse
from llmgw.catalog.engines import built_in
from llmgw.core.types.messages import Compute
from scripts.engine import rpc_pair
from scripts.ports import free_port
from tests.agent.rig import Rig
from tests.engines import llama, tiny_gguf
from tests.engines.running import Running, running

pytestmark = pytest.mark.e2e

ALL_ON_CPU = Compute(device="cpu", layers_gpu=0, layers_total=3, gpu_bytes=0)
#: 80 MB: loads in some tenths of a second.
SLOW = tiny_gguf.Shape(dim=512, layers=8, ffn=1024)


def template(name: str) -> dict[str, Any]:
    return dict(built_in()[name].values)


def server(model: Path | None = None, *flags: str) -> list[str]:
    """The prebuilt one: the fallback in a Python process has neither its arguments nor its environment."""
    program = llama.usable(rpc_pair()[0])
    return [*program, "-m", str(model or llama.model("alpha")), *llama.FLAGS, *flags]


def get(engine: Running, path: str, key: str = "") -> httpx.Response:
    return engine.client.get(path, headers={"Authorization": f"Bearer {key}"} if key else {})


def test_it_says_503_while_it_loads(tmp_path: Path) -> None:
    """And nothing of how far it is, neither there nor in its log: no dots since 2026."""
    model = tiny_gguf.write(tmp_path / "slow.gguf", "slow", SLOW)
    loading = (
        503,
        {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}},
    )
    for _ in range(20):  # on a busy box it may have loaded before anybody could ask
        seen = healths(model, tmp_path)
        assert seen[-1] == (200, {"status": "ok"})
        assert all(answer == loading for answer in seen[:-1])
        if len(seen) > 1:
            break
    else:
        pytest.fail("it was never seen loading")
    model.unlink()


def healths(model: Path, folder: Path) -> list[tuple[int, Any]]:
    """All that `/health` says from its first answer to its first good one."""
    env = {**llama.ENV, "LLAMA_ARG_LOG_VERBOSITY": "4"}
    seen: list[tuple[int, Any]] = []
    with running(server(model, "--no-mmap"), folder, env=env, ready_s=0) as engine:
        give_up = time.monotonic() + 20
        while (not seen or seen[-1][0] != 200) and time.monotonic() < give_up:
            try:
                answer = engine.client.get("/health")
            except httpx.TransportError:
                continue
            seen.append((answer.status_code, answer.json()))
        assert "\n..." not in engine.log.read_text()
    return seen


def test_keys_names_and_slots(tmp_path: Path) -> None:
    env = {**llama.ENV, "LLAMA_API_KEY": "k1"}
    with running(server(None, "--alias", "qwen"), tmp_path, env=env) as engine:
        assert [get(engine, p).status_code for p in ("/health", "/v1/models")] == [200, 200]
        assert [get(engine, p).status_code for p in ("/props", "/slots")] == [401, 401]
        assert get(engine, "/v1/models").json()["data"][0]["id"] == "qwen"
        props = get(engine, "/props", "k1").json()
        assert (props["model_alias"], props["total_slots"]) == ("qwen", 2)
        assert props["default_generation_settings"]["n_ctx"] == 1024  # -c / -np
        assert [slot["is_processing"] for slot in get(engine, "/slots", "k1").json()] == [False] * 2
        said = {"model": "whatever", "messages": [{"role": "user", "content": "hi"}]}
        assert engine.client.post(llama.CHAT, json=said).status_code == 401
        key = {"Authorization": "Bearer k1"}
        answer = engine.client.post(llama.CHAT, json=said, headers=key).json()
        assert answer["choices"][0]["message"]["content"] == " hello from alpha."


def test_a69_where_the_model_is_shows_at_the_level_that_the_template_asks_for(
    tmp_path: Path,
) -> None:
    """All layers are "offloaded to GPU" on a box without one; the buffers tell the truth."""
    asked = template("llama.cpp")["env"]["LLAMA_ARG_LOG_VERBOSITY"]
    for level, said in (("3", None), (asked, ALL_ON_CPU)):
        env = {**llama.ENV, "LLAMA_ARG_LOG_VERBOSITY": level}
        # Without Vulkan devices the box has none, whatever it has.
        with running(server(None, "-ngl", "99", "--device", "none"), tmp_path, env=env) as engine:
            ask = {"messages": [{"role": "user", "content": "a secret count"}]}
            assert engine.client.post(llama.CHAT, json=ask).status_code == 200
            log = engine.log.read_text()
        assert parse("llama.cpp", log) == said
        assert "secret" not in log


def test_a69_a_head_says_which_layers_its_worker_has(tmp_path: Path) -> None:
    """And serves alone, on its own CPU, where nothing answers at the worker's address."""
    head, worker = llama.rpc_head_and_worker("beta")
    env = {**llama.ENV, "LLAMA_ARG_LOG_VERBOSITY": "4"}
    nobody = f"127.0.0.1:{free_port()}"
    with running([*head, "--rpc", nobody], tmp_path, env=env) as alone:
        assert parse("llama.cpp", alone.log.read_text()) == ALL_ON_CPU
    with (
        llama.worker_of(worker) as (_, address),
        running([*head, "--rpc", address], tmp_path, env=env) as rank0,
    ):
        said = parse("llama.cpp", rank0.log.read_text())
    assert said == Compute(device="rpc", layers_gpu=3, layers_total=3, gpu_bytes=0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def test_the_template_under_an_agent(rig: Rig, tmp_path: Path) -> None:
    """The built-in command as it stands: it serves under its alias, with its key, and says where the model is."""
    (program,) = llama.usable(rpc_pair()[0])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llama-server").symlink_to(program)
    engine = template("llama.cpp")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    rig.start_agent().registered()
    rig.start(
        1,
        command=(*engine["command"], *llama.FLAGS),
        env={**engine["env"], "PATH": path},
        weights=str(llama.model("alpha")),
        compute=engine["compute"],
        health=engine["health"],
    )
    shard = rig.control.shard("alpha-1/0", "ready")
    assert shard["compute"] == {"device": "cpu", "layers_gpu": 0, "layers_total": 3, "gpu_bytes": 0}
    url = shard["endpoint"]
    assert httpx.get(f"{url}/props", trust_env=False).status_code == 401
    assert httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"] == "alpha"
