"""`llmgw up` and `down`: control, agent and gateway of one box together, in the foreground.

Answers for: which parts there are with which settings, and an end that leaves engines running unless they were named.
What the parts do is theirs.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from llmgw import config
from llmgw.cli import ask, options
from llmgw.cli.news import News, held_up
from llmgw.cli.sure import Yes, counted, say, sure
from llmgw.cli.whose import only_of
from llmgw.errors import EXIT_OK, LlmgwError, UnreachableError, UsageError

StateDir = Annotated[
    Path | None, typer.Option(help="Folder of control/ and agent/. [env: LLMGW_STATE_DIR]")
]
TICK_S = 0.1
END_S = 20.0


def up(
    *,
    catalog: options.Catalog = None,
    state_dir: StateDir = None,
    listen: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of control. [env: LLMGW_LISTEN] [default: 127.0.0.1:8801]"),
    ] = None,
    gateway: options.Gateway = None,
    agent: Annotated[
        str | None,
        typer.Option(help="HOST:PORT of the agent. [env: LLMGW_AGENT] [default: 127.0.0.1:8802]"),
    ] = None,
    node: options.Node = None,
    ports: options.Ports = None,
    gpus: options.Gpus = None,
) -> int:
    """Run control, agent and gateway on this box, without tokens.

    llmgw up --catalog catalog.yaml, and then llmgw status in another terminal. Ctrl-C ends control and agent; the
    engines and the gateway keep running.
    """
    from functools import partial

    from llmgw import catalog as catalogs
    from llmgw.cli import first, others
    from llmgw.cli.admit import admit
    from llmgw.cli.daemons import PORTS
    from llmgw.cli.supervise import Part, Supervisor

    flags: dict[str, object] = {"catalog": catalog, "state_dir": state_dir, "listen": listen}
    flags |= {"gateway": gateway, "agent": agent, "node": node, "ports": ports, "gpus": gpus}
    # The other verbs find the agent by the same variable, as a URL.
    near = os.environ.get("LLMGW_AGENT", "").strip().removeprefix("http://").rstrip("/")
    given = config.Given(flags, {**os.environ, "LLMGW_AGENT": near})
    places = _places(given)
    source = Path(given.text("catalog", str(config.catalog_path()))).absolute()
    catalogs.load(source)  # a broken file is said here, once, before anything is started
    first.check(given.text("node", ""), given.text("ports", PORTS), given.text("gpus", "auto"))
    folders = {part: _folder(given, part) for part in ("control", "agent")}
    others.keep(folders["control"] / "inventory.db", folders["agent"], places["control"])
    extra = {"--node": node, "--ports": ports, "--gpus": gpus}
    parts = [
        Part(
            "control",
            [
                *("control", "--catalog", str(source)),
                *("--inventory", str(folders["control"] / "inventory.db")),
                *("--listen", str(places["control"]), "--gateway", str(places["gateway"])),
            ],
            folders["control"] / "up.log",
            home=str(folders["control"] / "inventory.db"),
            before=partial(admit, folders["control"], folders["agent"]),
        ),
        Part(
            "agent",
            [
                *("agent", "--control", places["control"].url),
                *("--state-dir", str(folders["agent"]), "--listen", str(places["agent"])),
                *(word for flag, value in extra.items() if value for word in (flag, value)),
            ],
            folders["agent"] / "up.log",
            home=str(folders["agent"]),
        ),
    ]
    peers = {name: ask.Peer(name, place.url, "", "") for name, place in places.items()}
    token = partial(config.token, "LLMGW_TOKEN", folders["control"] / "token")
    brought = first.Brought(folders["control"] / "gateway")
    return Supervisor(parts, peers, token, brought, _next(given)).run()


def _next(given: config.Given) -> str:
    """How to look at it, from another terminal: the folder leads to control, agent and logs."""
    root = given.text("state_dir", "")
    folder = quote(str(Path(root).absolute())) if root else ""
    return f"`export LLMGW_STATE_DIR={folder}`, then  llmgw status" if root else "llmgw status"


def _places(given: config.Given) -> dict[str, config.Address]:
    places = {
        "control": given.address("listen", config.CONTROL_LISTEN),
        "gateway": given.address("gateway", config.GATEWAY_LISTEN),
        "agent": given.address("agent", config.AGENT_LISTEN),
    }
    for name, place in places.items():
        if not place.loopback:
            msg = f"up serves this box only, and {place} for the {name} is not loopback"
            raise UsageError(msg, "run `llmgw control` and `llmgw agent` for more than one box")
    return places


def down(
    *,
    engines: Annotated[
        bool, typer.Option("--engines", help="End all engines first: no new requests, then stop.")
    ] = False,
    yes: Yes = False,
    state_dir: StateDir = None,
    control: options.ControlUrl = None,
) -> int:
    """End control and the gateway.

    Engines keep running, and llmgw up finds them again; llmgw down --engines ends them first.
    """
    given = config.Given({"control": control, "state_dir": state_dir})
    folder = _folder(given, "control")
    gateway = _Gateway(folder / "gateway")
    peer = ask.first(ask.control(given, folder if given.flag("state_dir") else None))
    try:
        status = ask.get(peer, "/api/v1/status")
    except UnreachableError as e:
        if engines:
            msg = f"{e.message}: it is control that ends engines; nothing was ended"
            hint = (
                "start it (`llmgw up` finds all that runs), then `llmgw down --engines`; "
                "`llmgw adopt --dry-run` shows what runs"
            )
            raise UnreachableError(msg, hint) from e
        if not gateway.pid:
            raise
        gateway.stop()
        say(f"{e.message}; the gateway (pid {gateway.pid}) was told to end")
        if gateway.wait():
            typer.echo("the gateway has ended")
        return EXIT_OK
    if _folder_decides(given):
        only_of(folder if given.flag("state_dir") else config.inventory_path().parent, peer)
    running = _running(status)
    if engines and running:
        what = f"this ends {counted(len(running))}: {', '.join(running)}"
        sure(what, "End them?", yes=yes, otherwise="nothing was ended")
        ask.post(peer, "/api/v1/end", timeout_s=ask.LONG_S)
        _wait_for_end(peer)
        typer.echo(f"ended: {', '.join(running)}")
        running = []
    ends = ask.post(peer, "/api/v1/shutdown", timeout_s=ask.LONG_S)
    _wait_gone(peer, ends.get("pid", 0))
    # Control's own word: the state folder here may be that of another control.
    gateway.pid = _here(peer, ends.get("gateway_pid", gateway.pid))
    typer.echo("control and the gateway have ended" if gateway.wait() else "control has ended")
    if running:
        typer.echo(f"still running: {', '.join(running)}")
        say("`llmgw up` finds them again")
    return EXIT_OK


class _Gateway:
    """The gateway of this box, by its socket: it may be there when its control is not. `pid` 0: none."""

    def __init__(self, folder: Path) -> None:
        from llmgw import handover

        self._folder = folder
        self.pid = 0
        try:
            self.pid = handover.hello(folder).pid
        except LlmgwError:
            return

    def stop(self) -> None:
        from llmgw import handover

        handover.stop(self._folder)

    def wait(self) -> bool:
        """Whether it is over. It finishes what it has, and needs nobody's help; a while is worth a word."""
        give_up = time.monotonic() + END_S
        while self.pid and Path(f"/proc/{self.pid}").exists():
            if time.monotonic() > give_up:
                say(
                    f"the gateway (pid {self.pid}) still has requests: it finishes those in flight and ends; "
                    f"one that waits for a model may wait until its own time is over, `kill -9 {self.pid}` cuts them"
                )
                return False
            time.sleep(TICK_S)
        return True


def _folder(given: config.Given, part: str) -> Path:
    root = given.text("state_dir", "")
    return (Path(root) / part if root else config.state_dir(part)).absolute()


def _folder_decides(given: config.Given) -> bool:
    """Whether a folder was named, and no control as plainly: what is said on the line comes before the environment."""
    if given.flag("state_dir"):
        return not given.flag("control")
    return bool(given.text("state_dir", "")) and not given.items("control")


def _running(status: Any, nodes: frozenset[str] | None = None) -> list[str]:
    """What runs, on these nodes or on any."""
    ended = {"stopped", "failed"}
    return [
        f"{s['shard']} on {s['node']} (pid {s['pid']})"
        for r in status["replicas"]
        for s in r["shards"]
        if s["state"] not in ended and (nodes is None or s["node"] in nodes)
    ]


def _wait_for_end(peer: ask.Peer) -> None:
    """Until no engine runs; the engines' own drain and grace bound it. Ctrl-C leaves the wait, not the end.

    What is left on nodes that do not answer nobody can end: waiting for it would never end either.
    """
    news = News()
    try:
        while running := _running(status := ask.get(peer, "/api/v1/status")):
            silent = frozenset(n["node"] for n in status["nodes"] if n["state"] == "unreachable")
            if _running(status, silent) == running:
                msg = f"cannot be ended, {', '.join(sorted(silent))} does not answer: {', '.join(running)}"
                hint = "start the agent there and try again; `llmgw down` ends control and leaves them running"
                raise UnreachableError(msg, hint)
            news.say(f"ending: {', '.join(running)}{held_up(status)}")
            time.sleep(5 * TICK_S)
    except KeyboardInterrupt:
        say("not waiting any longer; the engines go on ending, control keeps running")
        raise


def _wait_gone(peer: ask.Peer, pid: int) -> None:
    """Until it answers no more and, here, its process is over: only then are its files closed and its lock free."""
    give_up = time.monotonic() + END_S
    while time.monotonic() < give_up:
        try:
            ask.get(peer, "/healthz", timeout_s=2.0)
        except UnreachableError:
            if not _here(peer, pid):
                return
        except LlmgwError:
            pass
        time.sleep(TICK_S)
    msg = f"control at {peer.place} still answers {END_S:.0f} s after it was asked to end"
    raise LlmgwError(msg, "look at its log; `kill` ends it and leaves the engines")


def _here(peer: ask.Peer, pid: int) -> int:
    """The pid, where it is one of ours on this box; 0 once it is gone, and for another box's."""
    if not pid or not config.Address(peer.place.rpartition(":")[0], 0).loopback:
        return 0
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return 0
    if not words:
        # Its memory is gone: a zombie is over, one that has its files yet to close is not.
        return 0 if state in (b"Z", b"X") else pid
    return pid if b"llmgw" in words else 0
