"""The gateway this control starts, and finds again after its own restart (design.md 1).

Control binds the listener, hands it down and keeps it open, so connections queue in the kernel while either restarts.
The gateway is never ended because control ends. Answers for: one gateway of ours at a time, its socket, its identity
(pidfd). It may not know what the gateway serves.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from llmgw import __version__, handover
from llmgw.config import Address
from llmgw.control import gateway_log, reach
from llmgw.control.crash import crash
from llmgw.control.guard import Tokens
from llmgw.control.listen import PROC, PortTakenError, bound, holders
from llmgw.control.settings import ControlSettings
from llmgw.control.story import Story
from llmgw.errors import LlmgwError, UnreachableError

#: One that ends sooner died at its start: the next waits longer each time.
FAST_DEATH_S = 10.0
FREE_DEATHS = 2
BACKOFF_S, BACKOFF_CAP_S = 0.25, 30.0
#: A port in use at our start is looked at again for this long: a gateway on its way up has it, and will answer.
PATIENCE_S = 10.0
ASK_S = 0.25
#: And so often, a second in all, where /proc does not show whose it is: that one has just ended, or just begun.
UNSEEN_LOOKS = 4
#: Its log is looked at this often.
ROTATE_S = 60.0


class Serving(NamedTuple):
    """A gateway of another version, whose place is taken."""

    pid: int
    pidfd: int
    gateway: str
    version: str


class Gateway:
    """`pid` 0: none runs. `problem` is for `status`, "" while it serves."""

    def __init__(
        self,
        settings: ControlSettings,
        story: Story,
        tokens: Tokens,
        passed: socket.socket | None = None,
    ) -> None:
        """`passed`: its listening socket, where the service manager keeps it."""
        assert settings.gateway is not None
        self.where: Address = settings.gateway
        self.pid = 0
        self.gateway = ""
        self.problem = ""
        self.prepared = False
        self._settings = settings
        self._story = story
        self._tokens = tokens
        self._folder = settings.gateway_dir
        self.listener = passed
        self._pidfd = -1
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = asyncio.Event()
        self._found = handover.Hello()
        #: of control, as a gateway that is started reaches it
        self.url = ""

    @property
    def stays(self) -> bool:
        """Until an operator asks for its end."""
        return not self._ending.is_set()

    def said(self) -> str:
        return self.problem

    # -- at the start of control

    async def prepare(self) -> None:
        """Find the gateway that serves already, else bind its port; LlmgwError when somebody else has it."""
        await self._find()
        self.prepared = True

    async def _find(self) -> None:
        make_folder(self._folder)
        give_up = asyncio.get_running_loop().time() + PATIENCE_S
        unseen = 0
        while not await self._adopted():
            try:
                pid = self._under_way() if self.listener is not None else self._bind()
            except PortTakenError as e:
                unseen += 1
                if e.command or unseen > UNSEEN_LOOKS:
                    raise
            else:
                if not pid:
                    return
                if asyncio.get_running_loop().time() > give_up:
                    self._silent(pid)
                    return
            await asyncio.sleep(ASK_S)

    def _bind(self) -> int:
        """0, or the pid of a gateway of ours that has the port already."""
        try:
            self.listener = bound(self.where, "the gateway", "--gateway")
        except PortTakenError as e:
            if not self._ours(e.pid):
                raise
            return e.pid
        crash("after_bind")
        return 0

    def _under_way(self) -> int:
        """Where the socket was passed to us no bind fails: whether a gateway of ours has it too is looked up."""
        return next((pid for pid, _ in holders(self.where.port) if self._ours(pid)), 0)

    async def _adopted(self) -> bool:
        try:
            found = await asyncio.to_thread(handover.listener, self._folder)
            crash("after_handover")
        except UnreachableError:
            return False
        old = found.gateway
        if old.listen != str(self.where):
            why = (
                f"the gateway (pid {old.pid}) serves {old.listen}, {self.where} is wanted: replaced"
            )
            self._story.tell("gateway", why, level="warning", pid=old.pid)
            found.socket.close()
            with suppress(UnreachableError):
                await asyncio.to_thread(handover.stop, self._folder)
            return False
        self._take(found.socket)
        self._tokens.add_node(found.token)
        if not self._watch(old.pid):
            return True  # it ended just now: its socket is ours, the next one gets it
        self.gateway, self._found = old.gateway, old
        self._story.tell(
            "gateway", f"re-adopted, pid {self.pid}, it serves {self.where}", pid=self.pid
        )
        return True

    def _take(self, listener: socket.socket) -> None:
        if self.listener is not None:
            self.listener.close()  # the service manager passed the same one
        self.listener = listener

    def _ours(self, pid: int) -> bool:
        """A gateway with our folder in its arguments: on its way up, or it hangs."""
        try:
            words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"gateway" in words and os.fsencode(self._folder) in words

    def _silent(self, pid: int) -> None:
        self._watch(pid)
        self.problem = f"the gateway (pid {pid}) has {self.where} and does not answer on {self._folder / handover.NAME}"
        self._story.tell("gateway", self.problem, level="warning", pid=pid)

    def _watch(self, pid: int) -> bool:
        """Hold on to this very process: its number may be another's later, the pidfd never is."""
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        self.pid = pid
        return True

    # -- while control runs

    async def run(self, url: str, on_gone: Callable[[str], Awaitable[None]]) -> None:
        """Start it when none runs, at once when it dies, until cancelled; `on_gone` gets the id of a dead one."""
        self.url = url
        async with asyncio.TaskGroup() as group:
            if self.pid and not reach.lasting(self._found, url):
                before = Serving(self.pid, self._pidfd, self.gateway, self._found.version)
                if await self._renewed(before):
                    group.create_task(_see_off(before, on_gone))
            await self._keep(on_gone)

    async def _renewed(self, before: Serving) -> bool:
        """After an upgrade: one of our version takes over, or the one before serves on and status says why.

        Killed here, the next control finds whichever holds the door.
        """
        if self._spawned():
            assert self._child is not None
            while self._child.poll() is None and not self.gateway:
                await self._learn()
                await asyncio.sleep(ASK_S)
            if self.gateway:
                why = f"pid {self.pid}, version {__version__}, took over from pid {before.pid}"
                why += f", version {before.version}, which finishes what it has"
                self._story.tell("gateway", why, pid=self.pid)
                return True
            pid = self.pid
            self.problem = f"the new gateway (pid {pid}) {gateway_log.how(self._reap(), self._log)}"
        self.pid, self._pidfd, self.gateway, _ = before
        self.problem = (
            f"the gateway (pid {self.pid}) of version {before.version} serves on: {self.problem}"
        )
        self._story.tell("gateway", self.problem, level="warning", pid=self.pid)
        if self._ending.is_set():
            self._terminate()
        return False

    async def _keep(self, on_gone: Callable[[str], Awaitable[None]]) -> None:
        quick = 0
        loop = asyncio.get_running_loop()
        while not self._ending.is_set():
            began = loop.time()
            if not self.pid and not self._spawned():
                await asyncio.sleep(BACKOFF_CAP_S)
                continue
            await self._gone()
            gateway, pid = self.gateway, self.pid
            code = self._reap()
            if gateway:
                await on_gone(gateway)
            if self._ending.is_set():
                return
            quick = quick + 1 if loop.time() - began < FAST_DEATH_S else 0
            pause = 0.0 if quick < FREE_DEATHS else min(BACKOFF_S * 2.0**quick, BACKOFF_CAP_S)
            why = f"the gateway (pid {pid}) {gateway_log.how(code, self._log)}"
            self.problem = why if pause else ""
            again = f"again in {pause:g} s" if pause else "started again at once"
            self._story.tell("gateway", f"{why}; {again}", level="warning", pid=pid)
            await asyncio.sleep(pause)

    def _spawned(self) -> bool:
        try:
            self._spawn()
        except (LlmgwError, OSError) as e:
            self.problem = f"the gateway cannot be started: {e}"
            self._story.tell("gateway", self.problem, level="warning")
            return False
        return True

    def _spawn(self) -> None:
        if self.listener is None:
            self.listener = bound(self.where, "the gateway", "--gateway")
        fd = self.listener.fileno()
        command = [sys.executable, "-m", "llmgw", "gateway", "--control", self.url]
        command += ["--listen-fd", str(fd), "--state-dir", str(self._folder)]
        command.append(
            "--takeover"
        )  # from one of another version; or from workers whose parent died
        if self._settings.insecure:
            command.append("--insecure")
        if self._settings.workers:
            command += ["--workers", str(self._settings.workers)]
        crash("before_spawn")
        make_folder(self._folder)  # somebody may have removed it
        log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(self._settings.node_token or self._settings.token),
                pass_fds=(fd,),
                start_new_session=True,
            )
        finally:
            os.close(log)
        crash("after_spawn")
        self._watch(self._child.pid)
        crash("after_watch")
        self.gateway = ""
        self._story.tell(
            "gateway", f"started, pid {self.pid}, it serves {self.where}", pid=self.pid
        )

    @property
    def _log(self) -> Path:
        return self._folder / "gateway.log"

    async def _gone(self) -> None:
        """Until its process has ended. Meanwhile learn its id, which names it in what it posts; keep its log small."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            while not ended.is_set():
                if not self.gateway:
                    await self._learn()
                with suppress(TimeoutError):
                    async with asyncio.timeout(ROTATE_S if self.gateway else ASK_S):
                        await ended.wait()
                await asyncio.to_thread(gateway_log.rotate, self._log)
        finally:
            loop.remove_reader(self._pidfd)

    async def _learn(self) -> None:
        try:
            if self._child is None:
                found = await asyncio.to_thread(handover.listener, self._folder)
                self._take(found.socket)
                said = found.gateway
                self._tokens.add_node(found.token)
            else:
                said = await asyncio.to_thread(handover.hello, self._folder)
        except LlmgwError:
            return
        if said.pid == self.pid:
            self.gateway = said.gateway
            self.problem = ""

    def _reap(self) -> int | None:
        """Its exit status; None of an adopted one, which was never our child."""
        os.close(self._pidfd)
        self._pidfd, self.pid, self.gateway = -1, 0, ""
        child, self._child = self._child, None
        return child.wait() if child is not None else None

    # -- at the end of control

    def end(self) -> None:
        """Only when an operator asked: it takes no new clients, finishes what it has, and goes (`llmgw down`)."""
        self._ending.set()
        self._terminate()

    def _terminate(self) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
                crash("gateway_ended")

    def let_go(self) -> None:
        """Control ends, the gateway stays: it has the socket too."""
        if self.listener is not None:
            self.listener.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._child is not None:
            self._child.returncode = 0  # not waited for: it outlives us


async def _see_off(old: Serving, on_gone: Callable[[str], Awaitable[None]]) -> None:
    """Its engines are busy until it ends: mostly it says so itself, killed it cannot."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(old.pidfd, ended.set)
    try:
        await ended.wait()
        await on_gone(old.gateway)
    finally:
        loop.remove_reader(old.pidfd)
        os.close(old.pidfd)


def make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(path, os.W_OK | os.X_OK):
            return
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        why = os.strerror(errno.EROFS if read_only else errno.EACCES)
    except OSError as e:
        why = e.strerror or str(e)
    msg = f"state dir {path} cannot be used: {why.lower()}"
    raise LlmgwError(msg, "give a writable one of your own")


def _environment(token: str) -> dict[str, str]:
    """Ours without what is not its business; secrets by environment, `ps` shows arguments."""
    mine = {"LLMGW_TOKEN", "LLMGW_NODE_TOKEN", "LLMGW_CRASH_AT", "LLMGW_LISTEN", "LLMGW_CONTROL"}
    mine |= {"LLMGW_ETCD_USER", "LLMGW_ETCD_PASSWORD", "LLMGW_PIN", "LLMGW_CA"}
    env = {k: v for k, v in os.environ.items() if k not in mine}
    return env | ({"LLMGW_NODE_TOKEN": token} if token else {})
