"""Ends of engines in words: what the log says of the cause, and what to try; real endings are in tests/engines."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from llmgw.agent.explain import KNOWN, LINE_CHARS, cpu, explain, lasting
from llmgw.core.types.catalog import Restart
from tests.agent.rig import Rig

WORKER = "(EngineCore pid=7) ERROR 11-30 21:11:44 [core.py:1512] "
VLLM_END = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)

#: The line, as its program words it, and what is advised.
ENDS = [
    (
        (
            "/opt/llama-server: error while loading shared libraries: libcuda.so.1: cannot open shared object file: No "
            "such file or directory"
        ),
        "install that library",
    ),
    ("ImportError: OSError: libcudart.so.12: cannot open shared object file", "install that"),
    (
        "llama-server: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by llama-server)",
        "older than its binary",
    ),
    ("ggml_cuda_init: CUDA driver version is insufficient for CUDA runtime version", "update it"),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "update it",
    ),
    ("CUDA error: no kernel image is available for execution on the device", "built for other"),
    ("RuntimeError: Failed to infer device type, please set VLLM_LOGGING_LEVEL", "finds no GPU"),
    ("RuntimeError: No CUDA GPUs are available", "finds no GPU"),
    (
        (
            "ValueError: Free memory on device cuda:0 (3.25/23.43 GiB) on startup is less than desired GPU memory "
            "utilization (0.96, 22.49 GiB). Decrease GPU memory utilization or reduce memory used by other processes."
        ),
        "lower --gpu-memory-utilization",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "too little GPU memory for its context",
    ),
    (
        (
            "ValueError: To serve at least one request with the models's max seq len (131072), 16.00 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (9.10 GiB)."
        ),
        "too little GPU memory for its context",
    ),
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "too little",
    ),
    (
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4685.30 MiB on device 0: cudaMalloc failed: out of "
            "memory"
        ),
        "out of GPU memory",
    ),
    ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", "out of GPU memory"),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "out of GPU memory",
    ),
    ("vk::Device::allocateMemory: ErrorOutOfDeviceMemory", "out of GPU memory"),
    (
        "Error: listen tcp 127.0.0.1:18001: bind: address already in use",
        "its port was taken",
    ),
    ("OSError: [Errno 98] Address already in use", "its port was taken"),
    (
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully "
            "covered"
        ),
        "fetch it again",
    ),
    (
        (
            "ValueError: The checkpoint you are trying to load has model type `new5` but Transformers does not "
            "recognize this architecture."
        ),
        "use a newer one",
    ),
    (
        "ValueError: Model architectures ['New5ForCausalLM'] are not supported for now.",
        "a newer one",
    ),
    ("huggingface_hub.errors.GatedRepoError: 403 Client Error.", "accept the licence"),
    ("Cannot access gated repo for url https://huggingface.co/meta-llama/", "accept the licence"),
    ("401 Client Error: Unauthorized for url: https://huggingface.co/x", "set HF_TOKEN"),
    (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        "cannot be reached",
    ),
    ("vllm: error: unrecognized arguments: --nnodes 2", "look at args"),
    ("vllm: error: argument --dtype: invalid choice: 'b' (choose from 'a')", "look at args"),
    ("Error: unknown flag: --port", "look at args"),
    ("ModuleNotFoundError: No module named 'flash_attn'", "install it for that Python"),
    ("torch.distributed.DistStoreError: Timed out after 601 seconds", "did not reach each other"),
    ("OSError: [Errno 28] No space left on device", "make room"),
]


@pytest.mark.parametrize(("line", "advice"), ENDS, ids=lambda text: text[:30])
def test_a_known_end_is_told_with_what_to_try(line: str, advice: str) -> None:
    log = f"INFO starting\n{WORKER}{line}\n{WORKER}  in a frame\n{VLLM_END}\n"
    said = explain("/opt/vllm", 1, log)
    told, _, tried = said.partition(" - ")
    assert told == f"{WORKER}{line}"[:LINE_CHARS]
    assert advice in tried


def test_each_row_has_a_line_that_no_other_row_takes() -> None:
    """Rows without one here are the ones of tests/engines/test_ends.py."""
    taken = [next(k for k in KNOWN if k.cause.search(line)) for line, _ in ENDS]
    elsewhere = [
        *("couldn't bind HTTP server socket", "invalid magic characters"),
        *("unknown model architecture", "failed to open GGUF file", "error: invalid argument:"),
        "Remote RPC server crashed or returned malformed response",
    ]
    taken += [next(k for k in KNOWN if k.cause.search(line)) for line in elsewhere]
    assert [k for k in KNOWN if k not in taken] == []


COMMAND = ("/opt/venv/bin/vllm", "-m", "sglang.launch_server")
LASTING = [
    (1, "error: invalid argument: --from-a-newer-build"),
    (2, "vllm: error: unrecognized arguments: --nnodes 2"),
    (2, "/opt/venv/bin/vllm serve: error: unrecognized arguments: --x"),
    (2, "launch_server.py: error: argument --dtype: invalid choice: 'b' (choose from 'a')"),
    (2, "vllm serve: error: argument --port: expected one argument"),
    (1, "Error: unknown flag: --port"),
    (1, "Error: unknown shorthand flag: 'x' in -x"),
]


@pytest.mark.parametrize(("code", "line"), LASTING)
def test_what_no_repeat_mends(code: int, line: str) -> None:
    """A67: of its own arguments alone, so said by the program itself, as its last words, with its own exit code."""
    assert lasting(code, f"usage: x [-h]\n{line}\n\n", COMMAND)
    assert lasting(code, f"0.00.133.157 E {line}", COMMAND)
    for other in (None, 0, -9, 137, 139):
        assert not lasting(other, line, COMMAND)
    assert not lasting(code, f"{line}\nnow the other one\nConnectionError", COMMAND)
    assert not lasting(code, f"INFO a client sent: {line}", COMMAND)
    assert not lasting(code, f"{WORKER}{line}", COMMAND)
    assert "look at args of the profile" in explain("x", code, line)


@pytest.mark.parametrize("line", [line for line, _ in ENDS if "look at args" not in _])
def test_any_other_end_may_be_another_the_next_time(line: str) -> None:
    """A driver that is not up yet, a file on its way, memory that another one holds."""
    assert not lasting(1, line, COMMAND)
    assert not lasting(2, "", COMMAND)


WRONG = "error: argument --mirror: invalid choice: 'eu' (choose from 'us')"


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("/opt/venv/bin/vllm serve m", "vllm serve"),
        ("env X=1 vllm serve m", "vllm"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "api_server.py"),
        ("python3 -m serve", "serve.py"),
        ("python3 -m sglang.launch_server", "python3 -m sglang.launch_server"),
        ("python3 /opt/tools/serve.py m", "serve.py"),
    ],
)
def test_its_own_program_says_so(command: str, program: str) -> None:
    assert lasting(2, f"{program}: {WRONG}", command.split())


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("/opt/serve.sh m", "fetch.py"),
        ("/opt/serve.sh m", "/opt/fetch.py"),
        ("sh -c fetch.py\t--mirror\teu&&vllm\tserve", "fetch.py"),
        ("python3 wrapper.py", "python3 -m fetch"),
        ("python3 -m vllm.entrypoints.openai.api_server", "entrypoints.py"),
        ("vllm serve m", "m.py"),
        ("", "vllm serve"),
    ],
)
def test_a_helper_that_a_wrapper_runs_may_go_another_way_the_next_time(
    command: str, program: str
) -> None:
    assert not lasting(2, f"{program}: {WRONG}", command.split(" "))
    assert not lasting(2, f"{program}: error: unrecognized arguments: --x", command.split(" "))


@pytest.mark.parametrize(
    ("code", "log", "said"),
    [
        (1, "", ""),
        (None, "one\n\n  two  \n", "two"),
        (3, f"x{'y' * 400}", "y" * LINE_CHARS),
        # A log says much of a process that somebody killed, and nothing of why.
        (-9, "CUDA out of memory, retrying\nserving", "serving"),
        (-15, "CUDA out of memory, retrying\nserving", "serving"),
        (137, "serving", "serving - SIGKILL in what it ran"),
        (139, "", "SIGSEGV in what it ran"),
        (127, "sh: 1: vlm: not found", "sh: 1: vlm: not found - a program in its command was not"),
        (126, "", "a program in its command cannot be executed here"),
        (255, "bye", "bye"),
        (
            1,
            f"{WORKER}KeyError: 'rope'\n{VLLM_END}\nRuntimeError: see root cause above",
            f"{WORKER}KeyError: 'rope'",
        ),
        (1, VLLM_END, VLLM_END),
        (
            1,
            (
                "1 validation error for CacheConfig\n  Value error, too small [type=value_error]\n"
                "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
            ),
            "Value error, too small [type=value_error]",
        ),
        (
            1,
            "E llama_model_load: error loading model: bad tensor\nE srv: exiting due to model loading error",
            "E llama_model_load: error loading model: bad tensor",
        ),
    ],
)
def test_any_other_end_is_told_in_its_own_words(code: int | None, log: str, said: str) -> None:
    assert explain("/bin/vllm", code, log).startswith(said)
    assert bool(explain("/bin/vllm", code, log)) == bool(said)


def test_the_features_of_a_cpu(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor: 0\nflags\t\t: fpu sse4_2 avx avx2\nbugs: none\n")
    assert cpu(file) == "has avx avx2, no avx_vnni avx512f avx512_vnni avx512_bf16 amx_tile"
    file.write_text("Features\t: fp asimd i8mm\n")
    assert cpu(file) == "has asimd i8mm, no asimddp sve"
    file.write_text("Features\t: asimd asimddp i8mm sve\n")
    assert cpu(file) == "has asimd asimddp i8mm sve"
    file.write_text("")
    assert cpu(file).startswith("has none of these, no avx avx2")
    assert cpu(tmp_path / "none").endswith("none does not tell: No such file or directory")


ILLEGAL = "int main(void) { __builtin_trap(); }\n"


def test_a_binary_for_another_cpu(rig: Rig, tmp_path: Path) -> None:
    """A real process that dies of an illegal instruction at once, and one below a shell (engines.md 1)."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build a program with an illegal instruction")
    source, binary = tmp_path / "ill.c", tmp_path / "llama-server"
    source.write_text(ILLEGAL)
    subprocess.run(["cc", "-O1", "-o", binary, source], check=True)
    if subprocess.run([binary], check=False).returncode != -4:
        pytest.skip("this compiler's __builtin_trap() is no illegal instruction here")
    rig.start_agent().registered()
    once = {"restart": Restart(max=0)}
    rig.start(1, command=(str(binary),), **once)
    rig.start(2, command=("sh", "-c", f"{binary}; exit $?"), **once)
    lacks = f"needs CPU features that this node lacks ({cpu()}) - use a build for this CPU"
    error = rig.control.shard("alpha-1/0", "failed")["error"]
    assert error == f"killed by signal 4 (SIGILL): llama-server's binary {lacks}"
    error = rig.control.shard("alpha-2/0", "failed")["error"]
    assert error == f"exited with code 132: a binary that it ran {lacks}"


@pytest.mark.parametrize("line", ["boom", "unknown model architecture: 'x'"])
def test_an_engines_own_clock_is_no_part_of_its_words(line: str) -> None:
    assert explain("llama-server", 1, f"x\n0.00.133.157 E {line}\n").startswith(line)
    assert explain("llama-server", 1, "1.2.3 E boom") == "1.2.3 E boom"
