"""How an engine's container is made: the arguments of `podman run` and `docker run`, and what they take from our hand.

Host network and host IPC, as an engine without a container has them; the runtime starts nothing again by itself, that
is the agent's. Values of the environment go by the environment of the runtime's program, so no secret is an argument.
May not run anything.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from llmgw.agent.launch import Filled, LaunchError
from llmgw.agent.runtime import Image
from llmgw.core.mount import Mount
from llmgw.core.types.messages import Gpu, Start
from llmgw.core.types.node import NodeFacts
from llmgw.core.types.record import Key, Record

#: The labels; NODE is what makes a container ours.
NODE, SHARD, INCARNATION, ATTEMPT = (
    "llmgw.node",
    "llmgw.shard",
    "llmgw.incarnation",
    "llmgw.attempt",
)
#: In the environment of the runtime's program that makes a container, and of nothing in it.
CLIENT = "LLMGW_CLIENT"
#: The log that the runtime itself keeps; ours is a file of its own.
LOG_OPTIONS = {
    # The engine writes into our file by itself, as without a container (podman-run(1), since 4.0).
    "podman": ("--log-driver=passthrough",),
    # Others have no bound, or cannot be read again.
    "docker": ("--log-driver=json-file", "--log-opt=max-size=64m", "--log-opt=max-file=1"),
}
#: What the program itself reads of its environment: these go as arguments.
_PROGRAMS_OWN = re.compile(
    r"PATH|HOME|TMPDIR|LD_.*|XDG_.*|DOCKER_.*|_?CONTAINER.*|STORAGE_.*|BUILDAH.*|PODMAN_.*|GO[A-Z]+|"
    r"SSL_CERT_.*|REGISTRY_AUTH_FILE"
)
_NVIDIA = ("GPU-", "MIG-")
#: Where nvidia-ctk writes what a GPU's name gives (CDI SPEC.md; /var/run is for what does not outlive a boot).
CDI_FILES = (Path("/etc/cdi/nvidia.yaml"), Path("/var/run/cdi/nvidia.yaml"))
_SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


class Order(NamedTuple):
    """`args` for the runtime's program, `env` for its environment."""

    args: tuple[str, ...]
    env: dict[str, str]


def name_of(record: Record) -> str:
    """One name an attempt: the runtime itself refuses a second container of it."""
    start = record.start
    return f"llmgw-{start.replica}-{start.rank}-{start.incarnation}-{record.attempt}"


def labels_of(key: Key, node_id: str) -> dict[str, str]:
    return {NODE: node_id, SHARD: key[0], INCARNATION: key[1]}


def order(
    record: Record, facts: NodeFacts, filled: Filled, image: Image, gpus: tuple[Gpu, ...]
) -> Order:
    start = record.start
    labels = {**labels_of(record.key, facts.node_id), ATTEMPT: str(record.attempt)}
    by_hand, given = _environment(filled, start)
    program, argv = _program(filled.argv, start, image)
    args = (
        "run",
        "--detach",
        "--pull=never",
        f"--name={name_of(record)}",
        *(f"--label={name}={value}" for name, value in labels.items()),
        "--network=host",
        "--ipc=host",
        # An engine has threads by the core, and podman allows 2048.
        "--pids-limit=-1",
        # SELinux would keep it from the weights and the GPU; without SELinux it says nothing.
        "--security-opt=label=disable",
        *LOG_OPTIONS[start.launcher],
        *(f"--env={name}" for name in by_hand),
        *(f"--env={name}={value}" for name, value in given.items()),
        *(f"--mount={_bind(mount)}" for mount in _mounts(filled)),
        *_devices(start, gpus),
        *program,
        start.image,
        *argv,
    )
    return Order(args, by_hand)


def _environment(filled: Filled, start: Start) -> tuple[dict[str, str], dict[str, str]]:
    """By the program's own environment, and as arguments: what the program would take for its own."""
    env = dict(filled.env)
    if not start.gpus:
        # Where the NVIDIA runtime is docker's default one, an image may ask for every GPU by itself.
        env.setdefault("NVIDIA_VISIBLE_DEVICES", "void")
    given = {name: value for name, value in env.items() if _PROGRAMS_OWN.fullmatch(name)}
    for name, value in given.items():
        if any(secret and secret in value for secret in filled.secrets):
            msg = f"env.{name} holds a secret, and {start.launcher} can be given {name} as an argument only"
            raise LaunchError(
                msg, f"put the secret into a variable that {start.launcher} does not use"
            )
    return {name: value for name, value in env.items() if name not in given}, given


def _program(
    argv: tuple[str, ...], start: Start, image: Image
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """An engine's template is a whole command line; any other command is added to the image's entrypoint.

    Where the image starts a program of that very name it knows better where it is (/app/llama-server).
    """
    if not (start.engine and argv):
        return (), argv
    program = argv[0]
    if image.entrypoint and Path(image.entrypoint[0]).name == Path(program).name:
        program = image.entrypoint[0]
    return (f"--entrypoint={program}",), argv[1:]


def _devices(start: Start, gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """NVIDIA's by name; others have one node for all of them, and the engine is told which to use."""
    nvidia = [uuid for uuid in start.gpus if uuid.startswith(_NVIDIA)]
    if nvidia and start.launcher == "docker":
        # One value of comma-separated words, so it wants its own quotes (docs.docker.com, "docker run --gpus").
        return ("--gpus", f'"device={",".join(nvidia)}"')
    named = tuple(f"--device=nvidia.com/gpu={_cdi_name(uuid, gpus)}" for uuid in nvidia)
    others = ("/dev/kfd", "/dev/dri") if len(nvidia) < len(start.gpus) else ()
    return (*named, *(f"--device={path}" for path in others if Path(path).exists()))


def _cdi_name(uuid: str, gpus: tuple[Gpu, ...]) -> str:
    """Older toolkits name GPUs by index only. A wrong one would be seen: the engine is pinned to the UUID besides."""
    written = [path.read_text(errors="replace") for path in CDI_FILES if path.is_file()]
    index = next((str(g.index) for g in gpus if g.uuid == uuid), "")
    return index if index and written and not any(uuid in text for text in written) else uuid


def _mounts(filled: Filled) -> tuple[Mount, ...]:
    """What the profile says, and the weights; of two for one place the profile's."""
    taken = {mount.target for mount in filled.mounts}
    own = (Mount(path, path, read_only=True) for path in mounts(filled.weights))
    return (*filled.mounts, *(mount for mount in own if mount.target not in taken))


def _bind(mount: Mount) -> str:
    """One value of comma-separated words, which docker and podman read as CSV: a path may hold commas and quotes."""
    words = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    words += ["readonly"] if mount.read_only else []
    return ",".join(map(_quoted, words))


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"' if set(word) & set(',"') else word


def mounts(weights: str) -> tuple[str, ...]:
    """What `weights` names, at the same path and read-only: a file and its other parts, or a folder.

    And what a folder's links lead to: a model hub's cache is made of them.
    """
    path = Path(weights)
    if not path.is_absolute() or not path.exists():
        return ()
    split = _SPLIT.search(path.name)
    if split:
        stem = path.name[: split.start()]
        return tuple(map(str, sorted(path.parent.glob(f"{stem}-*-of-{split[1]}.gguf"))))
    found = {path}
    if path.is_dir():
        links = (entry.resolve() for entry in path.iterdir() if entry.is_symlink())
        found |= {target.parent for target in links if path not in target.parents}
    return tuple(map(str, sorted(found)))
