"""A `cmd` of llama-swap taken apart: which engine, its weights, what llmgw says by itself, and the rest.

llmgw gives host, port and served name to an engine and keeps its key out of the arguments, so these go. May not guess
what a model needs: GPUs are counted where the command or its environment names them.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from msgspec import Struct, field

from llmgw.catalog.llama_swap import dialects
from llmgw.catalog.llama_swap.dialects import Dialect

#: What programs without a dialect are for.
_KINDS = {"whisper-server": "audio", "sd-server": "image"}
_RUNTIMES = ("docker", "podman")
_MOUNTS = ("-v", "--volume")
_ENV = ("-e", "--env")
_CARDS = ("--gpus", "--device", "--runtime")
#: Of `docker run`, what stands without a value.
_ALONE = frozenset(
    {
        "--rm",
        "--init",
        "-d",
        "--detach",
        "-i",
        "-t",
        "-it",
        "-ti",
        "--interactive",
        "--tty",
        "--privileged",
    }
)


class Command(Struct):
    """`head` () where nothing can be started; `dialect` None for an engine that is not known by name."""

    head: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    weights: str = ""
    dialect: Dialect | None = None
    launcher: str = ""
    image: str = ""
    mounts: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    gpus: int | None = None
    kind: str = ""
    dropped: list[str] = field(default_factory=list)


def taken_apart(text: str) -> Command:
    """ValueError: a quote is not closed."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    words = shlex.split(" ".join(line.rstrip().removesuffix("\\") for line in lines))
    if not words:
        return Command()
    env, words = _environment(words)
    if not words:
        return Command()
    name = PurePosixPath(words[0]).name
    if name in _RUNTIMES and words[1:2] == ["run"]:
        return _container(name, words[2:], env)
    dialect, length = dialects.spoken(words)
    if dialect is None:
        return Command(head=words[:1], args=_ported(words[1:]), env=env, kind=_KINDS.get(name, ""))
    command = Command(head=words[:length], dialect=dialect, env=env)
    _arguments(command, dialect, words[length:])
    if (
        command.gpus is None
    ):  # it uses what there is: one, alone, until somebody says how much it needs
        command.gpus = 1
    return command


def _environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """What `env NAME=VALUE …` in front of a command says, and the command."""
    if PurePosixPath(words[0]).name != "env":
        return {}, words
    end = next(
        (i for i, w in enumerate(words[1:], 1) if "=" not in w or w.startswith("-")), len(words)
    )
    return dict(w.split("=", 1) for w in words[1:end]), words[end:]


def _arguments(command: Command, dialect: Dialect, words: list[str]) -> None:
    found = dialects.read(dialect, words)
    command.weights, command.args, command.kind = found.weights, found.args, found.kind
    command.dropped += found.dropped
    if found.gpus is not None:
        command.gpus = found.gpus


def _ported(words: list[str]) -> list[str]:
    """An engine that is not known: a port of llama-swap's is one of ours."""
    found, left = [], list(words)
    while left:
        word = left.pop(0)
        option, joined, _ = word.partition("=")
        found += [option, "${port}"] if option == "--port" else [word]
        if option == "--port" and not joined and left:
            left.pop(0)
    return found


def _container(runtime: str, words: list[str], env: dict[str, str]) -> Command:
    """`docker run OPTIONS IMAGE ARGUMENTS`. The container's inside port is not ours: the host's network is used."""
    command = Command(head=[runtime], launcher=runtime, env=env)
    left, inside = list(words), ""
    while left and left[0].startswith("-"):
        word = left.pop(0)
        option, joined, value = word.partition("=")
        if not joined and option not in _ALONE:
            value = left.pop(0) if left else ""
        if option in _MOUNTS:
            command.mounts.append(value)
        elif option in _ENV and "=" in value:
            name, _, content = value.partition("=")
            command.env[name] = content
        elif option in _CARDS:
            command.gpus = _gpus(option, value, command.gpus)
        elif option in ("-p", "--publish"):
            inside = value.rpartition(":")[2].partition("/")[0]
        else:
            command.dropped.append(f"{option} {value}".rstrip())
    command.image = left.pop(0) if left else ""
    command.dialect = dialects.of_image(command.image)
    if command.dialect is None:
        command.args = ["${port}" if inside and word == inside else word for word in left]
        if "${port}" not in command.args:
            command.args += ["--host", "${host}", "--port", "${port}"]
        return command
    _arguments(command, command.dialect, left)
    return command


def _gpus(option: str, value: str, before: int | None) -> int | None:
    """Of `--gpus`: a number, `all`, or `device=0,1`; `all` is taken for one, which is then said.

    `--device` names one by CDI, or a node of a card's driver.
    """
    if option == "--device":
        if "gpu=" in value:
            return (before or 0) + 1
        return before or (1 if value.startswith(("/dev/dri", "/dev/kfd", "/dev/nvidia")) else None)
    if option == "--runtime":
        return before or (1 if value == "nvidia" else None)
    if found := re.search(r"device=([^\"']+)", value):
        return len(found[1].split(","))
    return int(value) if value.isdigit() else 1
