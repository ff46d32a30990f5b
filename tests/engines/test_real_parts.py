"""The real llama-server answers the tiny model exactly; the real binding sees the fake GPUs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import engine as engines
from tests.engines import fake_nvml, llama, tiny_gguf
from tests.engines.running import running

COUNT = " one two three four five six seven eight nine ten."


def test_what_is_chosen_is_there_as_llama_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "llama_server_command", lambda: ["/bin/echo", "a  b"])
    said = subprocess.run([engines.link(tmp_path), "c  d"], capture_output=True, check=True)
    assert (said.stdout, (tmp_path / "llama-server").stat().st_mode & 0o777) == (
        b"a  b c  d\n",
        0o755,
    )


def ask(text: str, **more: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.mark.e2e
def test_the_tiny_model_answers_exactly(tmp_path: Path) -> None:
    with running(llama.server("alpha"), tmp_path, env=llama.ENV) as engine:
        for text, said, why in (
            ("please count", COUNT, "stop"),
            ("hi", " hello from alpha.", "stop"),
            ("loop", " tick tock tick tock", "length"),
        ):
            body = ask(text, max_tokens=12 if why == "stop" else 4, temperature=1.5)
            choice = engine.client.post(llama.CHAT, json=body).json()["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == (said, why)
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(60) == 0


@pytest.mark.e2e
def test_one_engine_over_two_processes(tmp_path: Path) -> None:
    head, worker = llama.rpc_head_and_worker("beta")
    with llama.worker_of(worker) as (_, address):
        command = [*head, "--rpc", address]
        with running(command, tmp_path, env=llama.ENV) as engine:
            answer = engine.client.post(llama.CHAT, json=ask("count")).json()
            assert answer["choices"][0]["message"]["content"] == COUNT


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    small = tiny_gguf.Shape(layers=1)
    one, two = (tiny_gguf.write(tmp_path / n, "same", small).read_bytes() for n in ("a", "b"))
    assert one == two
    assert one.startswith(b"GGUF")


def test_the_choice_says_what_the_cpu_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "cpu_flags", lambda: frozenset({"avx2"}))
    found = engines.prebuilt("llama-server")
    assert found.command is None
    assert "avx512_bf16 avx512_vnni avx_vnni" in found.why


def test_the_binding_sees_the_fake_gpus_and_their_changes(tmp_path: Path) -> None:
    if reason := fake_nvml.why_not():
        pytest.skip(reason)
    gpus = tmp_path / "gpus.json"
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(fake_nvml.build(tmp_path)),
        "FAKE_NVML_JSON": str(gpus),
    }
    gpus.write_text(json.dumps({"gpus": [{"uuid": "GPU-a", "mem_used": 5}, {"uuid": "GPU-b"}]}))
    look = """
import json, pathlib, pynvml as n
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print([n.nvmlDeviceGetUUID(g) for g in gpus], n.nvmlDeviceGetMemoryInfo(gpus[0]).used)
pathlib.Path(FILE).write_text(json.dumps({"gpus": [{"uuid": "GPU-a", "error": 15}]}))
try:
    n.nvmlDeviceGetMemoryInfo(gpus[0])
except n.NVMLError_GpuIsLost as lost:
    print(lost)
"""
    command = [sys.executable, "-c", look.replace("FILE", repr(str(gpus)))]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert said == "['GPU-a', 'GPU-b'] 5\nGPU is lost\n"
