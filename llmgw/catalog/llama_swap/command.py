"""A `cmd` of llama-swap taken apart: which engine, its weights, what llmgw says by itself, and the rest.

llmgw gives host, port and served name to an engine and keeps its key out of the arguments, so these go. May not guess
what a model needs: GPUs are counted where the command or its environment names them.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from msgspec import Struct, field

#: Of `llama-server`, what llmgw's own template says: option -> whether a value follows.
_SAID = {"--host": True, "--port": True, "--alias": True, "-a": True, "--api-key": True}
_WEIGHTS = ("-m", "--model")
_LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers")
_RUNTIMES = ("docker", "podman")
_MOUNTS = ("-v", "--volume")
_ENV = ("-e", "--env")
#: Of `docker run`, what llmgw does by itself.
_OF_COURSE = {
    "--rm": False, "--init": False, "-d": False, "--detach": False, "-i": False, "-t": False, "-it": False,
    "--name": True, "-p": True, "--publish": True, "--gpus": True, "--network": True, "--net": True, "--ipc": True,
    "--pull": True, "--restart": True, "--stop-timeout": True,
}  # fmt: skip


class Command(Struct):
    """`program` "" where nothing can be started; `dropped` in the words of the command line."""

    program: str = ""
    args: list[str] = field(default_factory=list)
    weights: str = ""
    llama: bool = False
    cpu: bool = False
    launcher: str = ""
    image: str = ""
    mounts: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    gpus: int | None = None
    dropped: list[str] = field(default_factory=list)


def taken_apart(text: str) -> Command:
    """ValueError: a quote is not closed."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    words = shlex.split(" ".join(line.rstrip().removesuffix("\\") for line in lines))
    if not words:
        return Command()
    name = PurePosixPath(words[0]).name
    if name in _RUNTIMES and words[1:2] == ["run"]:
        return _container(name, words[2:])
    command = Command(program=words[0], llama=name.startswith("llama-server"))
    _arguments(command, words[1:])
    return command


def _arguments(command: Command, words: list[str]) -> None:
    left = list(words)
    while left:
        word = left.pop(0)
        option, joined, value = word.partition("=") if word.startswith("-") else (word, "", "")
        if option in _LAYERS:
            command.cpu = (value or (left[0] if left else "")) == "0"
        if command.llama and option in _WEIGHTS:
            command.weights = value if joined else (left.pop(0) if left else "")
        elif command.llama and option in _SAID:
            if _SAID[option] and not joined and left:
                value = left.pop(0)
            command.dropped.append(f"{option} {_shown(option, value)}".rstrip())
        elif option == "--port" and not command.llama:
            command.args += [option, "${port}"]
            if not joined and left:
                left.pop(0)
        else:
            command.args.append(word)


def _shown(option: str, value: str) -> str:
    return "***" if option == "--api-key" else value


def _container(runtime: str, words: list[str]) -> Command:
    """`docker run OPTIONS IMAGE ARGUMENTS`. The container's inside port is not ours: the host's network is used."""
    command = Command(program=runtime, launcher=runtime)
    left, inside = list(words), ""
    while left and left[0].startswith("-"):
        word = left.pop(0)
        option, joined, value = word.partition("=")
        if not joined and (option in _MOUNTS or option in _ENV or _OF_COURSE.get(option, True)):
            value = left.pop(0) if left else ""
        if option in _MOUNTS:
            command.mounts.append(value)
        elif option in _ENV and "=" in value:
            name, _, content = value.partition("=")
            command.env[name] = content
        elif option == "--gpus":
            command.gpus = _gpus(value)
        elif option in ("-p", "--publish"):
            inside = value.rpartition(":")[2].partition("/")[0]
        else:
            command.dropped.append(f"{option} {value}".rstrip())
    command.image = left.pop(0) if left else ""
    command.args = ["${port}" if inside and word == inside else word for word in left]
    if "${port}" not in command.args:
        command.args += ["--host", "${host}", "--port", "${port}"]
    return command


def _gpus(value: str) -> int:
    """Of `--gpus`: a number, `all`, or `device=0,1`; `all` is taken for one, which is then said."""
    if found := re.search(r"device=([^\"']+)", value):
        return len(found[1].split(","))
    return int(value) if value.isdigit() else 1
