"""One attempt of an engine in a container: its image fetched, its container made, and what came of it.

A start is answered when it is known: whatever podman or docker says, what counts is whether its container is there.
May not decide that there is another attempt.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from llmgw.agent import container_evidence as evidence
from llmgw.agent import crash, launch, ports
from llmgw.agent.container_start import CLIENT, labels_of, name_of, order
from llmgw.agent.devices import Devices
from llmgw.agent.explain import TAIL_BYTES, explain
from llmgw.agent.logs import Logs
from llmgw.agent.oom import Ooms
from llmgw.agent.placeholders import Filler, redacted
from llmgw.agent.process import Pids
from llmgw.agent.runtime import PULL_S, RUN_S, AwayError, Box, Image, Runtime, Said
from llmgw.core.types.messages import Gpu
from llmgw.core.types.node import Event, NodeFacts, Spawned, SpawnFailed
from llmgw.core.types.record import Key, Record
from llmgw.errors import LlmgwError

log = structlog.get_logger()
#: Until a runtime that does not answer is asked again whether it runs.
AGAIN_S = 1.0
WORDS_BYTES = 8192
#: The runtime's own exit codes for "cannot be run" and "not found in the image" (podman-run(1), docker run).
NOT_THERE = frozenset({126, 127})
#: What a person can do about it, by a word of the runtime's.
HINTS = {
    "cdi device": "name the GPUs: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    "could not select device driver": "install nvidia-container-toolkit, then nvidia-ctk runtime configure",
    "executable file": "give the profile a command whose program the image has, by its whole path",
    "invoke a command that was not found": "give the profile a command whose program the image has",
    "permission denied": "give the agent's user a right to the runtime",
}


class Hands(Protocol):
    """What the performer shares."""

    facts: NodeFacts
    state_dir: Path
    logs: Logs
    devices: Devices
    post: Callable[[Event], None]
    tasks: asyncio.TaskGroup
    known: dict[Key, Pids]
    ooms: Ooms

    def filler(self, record: Record) -> Filler: ...

    def secrets_of(self, record: Record) -> frozenset[str]: ...


#: The record as it is just now: a stop may have been ordered meanwhile.
Now = Callable[[Record], Record]


async def start(hands: Hands, now: Now, record: Record) -> tuple[Event, Box | None]:
    """The answer, and the container where one runs."""
    fill = hands.filler(record)
    fill.values = {**fill.values, "container_name": name_of(record)}
    fatal = True
    try:
        attempt = _Attempt(hands, now, record)
        found, said = await attempt.made(fill)
    except LlmgwError as e:
        error = f"{e.message} - {e.hint}" if e.hint else e.message
    except AwayError as e:  # before anything was started
        error, fatal = str(e), False
    except (OSError, ValueError) as e:
        words = e.strerror if isinstance(e, OSError) else "its command holds a NUL?"
        error = f"its container cannot be started on {hands.facts.node}: {words}"
    else:
        if found.box is not None and found.lives:
            return attempt.spawned(found.box, found.pids), found.box
        error, fatal = attempt.why(found.box, said), said.code in NOT_THERE
    secrets = frozenset({*fill.secrets, *hands.secrets_of(record)})
    error = redacted(error, secrets)
    return SpawnFailed(key=record.key, attempt=record.attempt, error=error, fatal=fatal), None


class _Found(NamedTuple):
    box: Box | None
    lives: bool = False
    pids: Mapping[int, int] = {}


class _Attempt:
    def __init__(self, hands: Hands, now: Now, record: Record) -> None:
        self.hands = hands
        self.now = now
        self.record = record
        self.runtime = Runtime(record.start.launcher)
        self.artefact = ""

    async def made(self, fill: Filler) -> tuple[_Found, Said]:
        """All that may fail for want of something comes before its container is made."""
        start, facts, logs = self.record.start, self.hands.facts, self.hands.logs
        gpus: tuple[Gpu, ...] = self.hands.devices.last.gpus or ()
        for port, who in ports.busy(self.record.ports).items():
            msg = f"port {port} is in use by {who}"
            raise launch.LaunchError(msg)
        if not self.runtime.installed:
            msg = f"{start.launcher} is not on the PATH of the agent on {facts.node}"
            hint = f"install {start.launcher} there, or set another launcher"
            raise launch.LaunchError(msg, hint)
        filled = launch.filled(self.record, facts, fill, gpus)
        self.artefact = filled.artefact
        evidence.remember(self.hands.state_dir, start.launcher)
        fd = logs.open_for_attempt(start.shard)
        try:
            image = await self._image(fd)
            args, given = order(self.record, facts, filled, image, gpus)
            env = {**launch.inherited(os.environ), **given, CLIENT: "1"}
            # The engine gets this descriptor from podman: its words go there as without a container.
            log_fd = fd if start.launcher == "podman" else None
            try:
                said = await self.runtime.call(
                    *args, timeout_s=RUN_S, env=env, log_fd=log_fd, leave=True
                )
            except AwayError as e:  # it may be there all the same
                said = Said(-1, "", str(e))
        finally:
            os.close(fd)
        crash.here("after-Spawn")
        return await self._found(), said

    async def _image(self, fd: int) -> Image:
        """Most expect that a missing one is fetched: before the start's time begins to run, as long as it takes."""
        name, node, kind = self.record.start.image, self.hands.facts.node, self.runtime.kind
        image = await self.runtime.image(name)
        if image is not None:
            return image
        os.write(fd, f"llmgw: {kind} pull {name}\n".encode())
        log.info("pulling an image", image=name, shard=self.record.start.shard)
        said = await self.runtime.call(
            "pull", name, timeout_s=PULL_S, log_fd=fd, wanted=lambda: self._wanted("running")
        )
        image = None if said.code else await self.runtime.image(name)
        if image is None:
            words = self.hands.logs.last_line(self.record.start.shard)
            msg = f"image {name} is not on {node} and cannot be pulled: {words} - try {kind} pull {name} there"
            raise AwayError(msg)
        return image

    def _wanted(self, *desired: str) -> bool:
        return self.now(self.record).desired in desired

    async def _found(self) -> _Found:
        """Asked until it is known; an operator's word alone ends that (A43)."""
        while not self.now(self.record).force:
            try:
                found = await self._look()
            except AwayError as e:
                shard = self.record.start.shard
                log.warning("not known whether it runs", shard=shard, error=str(e))
            else:
                if found is not None:
                    return found
            await asyncio.sleep(AGAIN_S)
        return _Found(None)

    async def _look(self) -> _Found | None:
        """None where something dead of it cannot be removed yet."""
        labels = labels_of(self.record.key, self.hands.facts.node_id)
        boxes = await evidence.ours(self.runtime, labels, {})
        box = next((b for b in boxes if evidence.attempt_of(b) == self.record.attempt), None)
        if box is None:
            return _Found(None)
        if not (box.over or box.unborn):
            return _Found(box, lives=True, pids=evidence.groups().get(box.id, {}))
        return _Found(box) if await self.runtime.remove(box) else None

    def spawned(self, box: Box, pids: Mapping[int, int]) -> Spawned:
        self.hands.known[self.record.key] = dict(pids)
        return Spawned(
            key=self.record.key,
            attempt=self.record.attempt,
            pid=box.pid,
            start_ticks=pids.get(box.pid, 0),
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            artefact=self.artefact,
        )

    def why(self, box: Box | None, said: Said) -> str:
        """Why nothing runs: the engine's own end, or what the runtime says."""
        shard, logs = self.record.start.shard, self.hands.logs
        if box is not None and box.over:
            program = next(iter(self.record.start.command), self.record.start.image)
            said_last = explain(program, box.code, logs.end(shard, TAIL_BYTES))
            return evidence.end_words(box, said_last)
        words = said.why or Said(0, "", logs.tail(shard, WORDS_BYTES)).why
        hint = next((h for word, h in HINTS.items() if word in words.lower()), "")
        what = f"{self.runtime.kind} did not start {self.record.start.image}: {words}"
        return f"{what} - {hint}" if hint else what
