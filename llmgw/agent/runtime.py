"""The door to container runtimes: `podman` and `docker` by their command lines, no SDK. Every call is bounded.

Answers for: a question that got no answer is `AwayError`, never "there is none" (F45). It waits for its programs in
the loop without blocking it. May not know what a container is for.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, NamedTuple

import msgspec

from llmgw.agent.launch import inherited

#: A question; a start of what is there already; a pull of tens of GB over a slow line.
ASK_S, RUN_S, PULL_S = 10.0, 180.0, 6 * 3600.0
#: How often a long one is asked whether it is still wanted.
WANTED_S = 1.0
#: Of a program's words so much is read.
WORDS_BYTES = 64 << 20
#: podman calls "stopped" what has ended and is not cleaned up yet.
OVER = frozenset({"exited", "stopped", "dead"})
UNBORN = frozenset({"created", "configured"})
#: Shells and runtimes tell the end by a signal as 128 and its number.
SIGNALLED = range(129, 193)


class AwayError(Exception):
    """The runtime could not be asked: nothing is known."""


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def why(self) -> str:
        """The line that says what is wrong: docker's last one only says where help is."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return next((x for x in reversed(lines) if "rror" in x), lines[-1] if lines else "")


class Box(NamedTuple):
    """One container as its runtime tells of it."""

    kind: str
    id: str
    status: str
    pid: int
    exit_code: int
    out_of_memory: bool
    labels: dict[str, str]
    env: dict[str, str]
    argv: tuple[str, ...]
    image: str
    #: what `image` names may be another one by now
    image_id: str

    @property
    def over(self) -> bool:
        return self.status in OVER

    @property
    def unborn(self) -> bool:
        """Made and never started: the runtime's program was ended in between."""
        return self.status in UNBORN

    @property
    def code(self) -> int:
        """As subprocess has it: -9 for signal 9."""
        return 128 - self.exit_code if self.exit_code in SIGNALLED else self.exit_code


class Image(NamedTuple):
    entrypoint: tuple[str, ...]
    labels: Mapping[str, str] = {}


class Runtime:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def installed(self) -> bool:
        return shutil.which(self.kind) is not None

    # ------------------------------------------------ questions

    async def boxes(self, labels: Mapping[str, str]) -> list[Box]:
        """Every container with these labels, in whatever state; "" is any value."""
        wanted = (f"{name}={value}" if value else name for name, value in labels.items())
        filters = [f"--filter=label={label}" for label in wanted]
        found = await self._answer("ps", "--all", "--quiet", "--no-trunc", *filters)
        ids = found.split()
        return await self.inspect(ids) if ids else []

    async def inspect(self, ids: Iterable[str]) -> list[Box]:
        """Those of them that are there; one that is removed meanwhile is no trouble."""
        said = await self.call("inspect", "--type", "container", *ids)
        if said.code and "no such" not in said.err.lower():
            raise AwayError(self._refused("inspect", said))
        try:
            found = msgspec.json.decode(said.out or "[]", type=list[_Inspected])
        except msgspec.MsgspecError as e:
            msg = f"{self.kind} inspect answers what cannot be read: {e}"
            raise AwayError(msg) from e
        return [_box(self.kind, one) for one in found]

    async def image(self, name: str) -> Image | None:
        """None where it is not on this node."""
        said = await self.call("image", "inspect", "--format", "{{json .Config}}", name)
        if said.code:
            words = said.err.lower()
            if "no such image" in words or "not known" in words or "not found" in words:
                return None
            raise AwayError(self._refused("image inspect", said))
        try:
            config = msgspec.json.decode(said.out or "{}", type=_ImageConfig | None)
        except msgspec.MsgspecError as e:
            msg = f"{self.kind} image inspect answers what cannot be read: {e}"
            raise AwayError(msg) from e
        if config is None:
            return Image(())
        return Image(_words(config.Entrypoint), config.Labels or {})

    # ------------------------------------------------ orders

    async def kill(self, box: Box, name: str) -> bool:
        """To its first process; what is frozen would hear nothing."""
        if box.status == "paused":
            await self.call("unpause", box.id)
        return not (await self.call("kill", "--signal", name, box.id)).code

    async def remove(self, box: Box) -> bool:
        """Whether it is gone."""
        said = await self.call("rm", "--force", box.id)
        return not said.code or "no such" in said.err.lower()

    # ------------------------------------------------ the program

    async def _answer(self, *args: str) -> str:
        said = await self.call(*args)
        if said.code:
            raise AwayError(self._refused(args[0], said))
        return said.out

    def _refused(self, what: str, said: Said) -> str:
        return f"{self.kind} {what} does not answer (exit code {said.code}): {said.why}"

    async def call(
        self,
        *args: str,
        timeout_s: float = ASK_S,
        env: Mapping[str, str] | None = None,
        log_fd: int | None = None,
        leave: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Said:
        """Run it to its end. Raises `AwayError` when that does not come in time, or it cannot be run.

        With `log_fd` its words go there and are not in the answer. `leave`: let it finish when this agent ends.
        `wanted` is asked now and then.
        """
        try:
            with _memory("out") as out, _memory("err") as err:
                child = subprocess.Popen(  # noqa: ASYNC220  asyncio's would end with us
                    [self.kind, *args],
                    env=inherited(os.environ) if env is None else env,
                    stdin=subprocess.DEVNULL,
                    stdout=out if log_fd is None else log_fd,
                    stderr=err if log_fd is None else log_fd,
                    start_new_session=True,
                )
                await self._ended(child, args[0], timeout_s, wanted, leave=leave)
                return Said(child.returncode, _read(out), _read(err))
        except OSError as e:  # no descriptor, no process
            msg = f"{self.kind} cannot be run: {e.strerror}"
            raise AwayError(msg) from e

    async def _ended(
        self,
        child: subprocess.Popen[bytes],
        what: str,
        timeout_s: float,
        wanted: Callable[[], bool],
        *,
        leave: bool,
    ) -> None:
        loop, fd = asyncio.get_running_loop(), os.pidfd_open(child.pid)
        end: asyncio.Future[None] = loop.create_future()
        loop.add_reader(fd, done, end)
        until_s, msg = loop.time() + timeout_s, ""
        try:
            while not end.done() and not msg:
                left_s = until_s - loop.time()
                await asyncio.wait({end}, timeout=min(max(left_s, 0.0), WANTED_S))
                if left_s <= 0.0:
                    msg = f"{self.kind} {what} does not answer: nothing in {timeout_s:g} s"
                elif not wanted():
                    msg = f"a stop was ordered during {self.kind} {what}"
            if not end.done():
                await _killed(child)
                raise AwayError(msg)
            child.wait()
        except asyncio.CancelledError:
            if not leave:
                child.kill()
            raise
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    def follow(
        self, box: Box, log_fd: int, since_s: float, mark: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Copies what it says into the log until it ends; outlives this agent (F49)."""
        return subprocess.Popen(
            [self.kind, "logs", "--follow", f"--since={since_s:.6f}", box.id],
            env={**inherited(os.environ), **mark},
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            start_new_session=True,
        )


def done(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)


async def _killed(child: subprocess.Popen[bytes]) -> None:
    """What hangs in the kernel is not waited for (F67)."""
    child.kill()
    for _ in range(20):
        if child.poll() is not None:
            return
        await asyncio.sleep(0.05)


def _memory(name: str) -> BinaryIO:
    return open(os.memfd_create(name), "rb")  # noqa: PTH123  a descriptor


def _read(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(WORDS_BYTES).decode(errors="replace")


def _box(kind: str, one: _Inspected) -> Box:
    state, config = one.State, one.Config
    pairs = (item.partition("=") for item in config.Env or () if "=" in item)
    return Box(
        kind=kind,
        id=one.Id,
        status=state.Status,
        pid=state.Pid,
        exit_code=state.ExitCode,
        out_of_memory=state.OOMKilled,
        labels=config.Labels or {},
        env={name: value for name, _, value in pairs},
        argv=_words(config.Cmd),
        image=config.Image or one.ImageName,
        image_id=one.Image,
    )


def _words(raw: list[str] | str | None) -> tuple[str, ...]:
    """A list of docker's may be one text of podman's."""
    return tuple(raw.split()) if isinstance(raw, str) else tuple(raw or ())


class _State(msgspec.Struct):
    Status: str
    Pid: int = 0
    ExitCode: int = 0
    OOMKilled: bool = False


class _Config(msgspec.Struct):
    Labels: dict[str, str] | None = None
    Env: list[str] | None = None
    Cmd: list[str] | str | None = None
    Image: str = ""


class _Inspected(msgspec.Struct):
    Id: str
    State: _State
    Config: _Config
    ImageName: str = ""
    Image: str = ""


class _ImageConfig(msgspec.Struct):
    Entrypoint: list[str] | str | None = None
    Labels: dict[str, str] | None = None
