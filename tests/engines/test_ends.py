"""How real programs end, and what is made of it: each runs, fails as a node may make it fail, and is explained."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from llmgw.agent.explain import explain, lasting
from scripts.engine import rpc_pair
from scripts.ports import free_port
from tests.engines import llama
from tests.engines.running import running

ARCHITECTURE = b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llam"


def ended(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and log of what ends by itself; its log is at the level that the built-in engines ask for."""
    env = {**os.environ, **llama.ENV, "LLAMA_ARG_LOG_VERBOSITY": "4"}
    ran = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=False
    )
    return ran.returncode, ran.stdout.decode(errors="replace")[-32768:]


def end(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and explanation."""
    code, log = ended(command)
    return code, explain(command[0], code, log)


def end_saying(why: str, command: Sequence[str]) -> tuple[int, str]:
    """The same of llama-server: it logs in a thread of its own, and may end before its last words are out."""
    for _ in range(7):
        code, said = end(command)
        if why in said:
            return code, said
    return end(command)


def server(model: Path | str, *flags: str) -> list[str]:
    """The prebuilt one: what is asked here is what the binary says."""
    program = llama.usable(rpc_pair()[0])
    return [*program, "-m", str(model), "--port", str(free_port()), "-t", "1", *flags]


@pytest.mark.e2e
def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        why = f"couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port} - "
        code, said = end_saying(why, server(llama.model("alpha"), "--port", port))
    assert code == 1
    assert why in said
    assert "its port was taken" in said


@pytest.mark.e2e
def test_models_that_are_none(tmp_path: Path) -> None:
    whole = llama.model("alpha").read_bytes()
    short, junk, new = (tmp_path / name for name in ("short", "junk", "new"))
    short.write_bytes(whole[:300_000])
    junk.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert ARCHITECTURE in whole
    new.write_bytes(whole.replace(ARCHITECTURE + b"a", ARCHITECTURE + b"b"))
    for model, cause, advice in (
        (short, "data is not within the file bounds, model is corrupted", "fetch it again"),
        (junk, "invalid magic characters", "fetch it again"),
        (new, "unknown model architecture: 'llamb'", "use a newer one"),
        (tmp_path / "none", "No such file or directory", "look at weights"),
    ):
        code, said = end_saying(cause, server(model))
        assert code == 1
        told, _, tried = said.partition(" - ")
        assert cause in told
        assert advice in tried


@pytest.mark.e2e
def test_an_argument_that_it_does_not_know() -> None:
    command = server(llama.model("alpha"), "--from-a-newer-build")
    code, log = ended(command)
    assert code == 1
    assert lasting(code, log, command)
    said = explain("llama-server", code, log)
    assert said.startswith("error: invalid argument: --from-a-newer-build - this build does not")


@pytest.mark.e2e
def test_a_binary_without_its_libraries(tmp_path: Path) -> None:
    (program,) = llama.usable(rpc_pair()[0])
    alone = str(shutil.copy(program, tmp_path / "llama-server"))
    code, said = end([alone, "--version"])
    assert code == 127
    assert "error while loading shared libraries: lib" in said
    assert said.endswith("install that library, or set LD_LIBRARY_PATH in the profile's env")


@pytest.mark.e2e
def test_a_head_whose_worker_dies(tmp_path: Path) -> None:
    """It aborts with the next request (engines.md 5), and says that it was the worker."""
    head, worker = llama.rpc_head_and_worker("beta")
    with (
        llama.worker_of(worker) as (rank1, address),
        running([*head, "--rpc", address], tmp_path, env=llama.ENV) as engine,
    ):
        rank1.kill()
        rank1.wait()
        with pytest.raises(httpx.TransportError):
            engine.client.post("/v1/completions", json={"prompt": "count"})
        code = engine.process.wait(60)
        said = explain("llama-server", code, engine.log.read_text())
    assert code == -6
    assert "Remote RPC server crashed or returned malformed response" in said
    assert said.endswith("a worker of its group is gone: the worker's own log says why")


def test_programs_in_python() -> None:
    code, said = end([sys.executable, "-c", "import no_such_module"])
    assert code == 1
    assert said.startswith("ModuleNotFoundError: No module named 'no_such_module' - install it")
    parse = "import argparse; argparse.ArgumentParser(prog='vllm').parse_args(['--nnodes', '2'])"
    code, log = ended([sys.executable, "-c", parse])
    assert code == 2
    assert lasting(code, log, ["/opt/vllm", "serve"])
    said = explain("vllm", code, log)
    assert said.startswith("vllm: error: unrecognized arguments: --nnodes 2 - this build does not")
    choose = "import argparse; p = argparse.ArgumentParser(prog='vllm'); "
    choose += "p.add_argument('--dtype', choices=['auto']); p.parse_args(['--dtype'{})"
    for more in ("]", ", 'b']"):
        assert lasting(*ended([sys.executable, "-c", choose.format(more)]), ["vllm"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"import socket; socket.create_server(('127.0.0.1', {taken.getsockname()[1]}))"
        code, said = end([sys.executable, "-c", bind])
    assert code == 1
    assert "Address already in use" in said
    assert "its port was taken" in said


def test_a_shell_that_finds_nothing() -> None:
    code, said = end(["sh", "-c", "exec no-such-engine"])
    assert code == 127
    assert said.endswith("a program in its command was not found: look at command in the catalog")


def test_a_shell_whose_program_was_killed() -> None:
    code, said = end(["sh", "-c", "sh -c 'kill -9 $$'; exit $?"])
    assert (code, said.rpartition(" - ")[2]) == (137, "SIGKILL in what it ran")
