"""The real doors of the doctor: NVML, HTTP, the kernel's clock, a service manager's word, engines by their markers.

Answers for: each look bounded in time, and none of them changes anything. May not judge what comes through.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import httpx
import msgspec

from llmgw import config, tls
from llmgw.agent import bearers, process
from llmgw.agent.doctor.look import Answer, Cards, Owner, holder
from llmgw.agent.gpu import GpuFileError, Gpus
from llmgw.agent.gpu.nvml import persistence_off
from llmgw.agent.identity import FILE, node_id_in
from llmgw.config import Trust

#: A service manager or a control that hangs must not hang who asks what is wrong.
ASK_S = 5.0
#: adjtimex(2): the clock is not synchronised; a state below is.
TIME_ERROR = 5
TIMEX_BYTES = 512


def cards(source: str) -> Cards:
    try:
        gpus = Gpus(source)
    except GpuFileError as e:
        return Cards(None, e.message)
    found = gpus.read()
    unheld = persistence_off() if found.gpus and source == "auto" else ()
    return Cards(found.gpus, found.error, unheld)


def ask(url: str, path: str, token: str, trust: Trust = Trust()) -> Answer:  # noqa: B008 - immutable
    """A GET; a proxy of the login shell is not for the fleet's own traffic.

    Whether anybody is there is asked without the token: on its way to a port of TLS anybody could read it.
    """
    headers = {"Authorization": f"Bearer {token}"} if token and path != "/healthz" else {}
    plain, trust = config.pinned(url, trust)
    try:
        found = httpx.get(
            f"{plain.rstrip('/')}{path}",
            headers=headers,
            timeout=ASK_S,
            trust_env=False,
            verify=tls.verify(plain, trust),
        )
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as e:
        wrong, hint = tls.trouble(e)
        if wrong:  # somebody is there: no firewall, and nothing to start
            return Answer(0, error=wrong, hint=hint or "look at what listens there")
        return Answer(0, error=str(e) or type(e).__name__)
    return Answer(found.status_code, found.headers.get("date", ""))


def unsynchronised() -> bool | None:
    """Asked with no mode set, so nothing is adjusted."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state == TIME_ERROR)


def tell(argv: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - words of ours
            argv,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def others(state_dir: Path) -> dict[int, Owner]:
    """Live processes that carry another agent's markers, by pid."""
    own, found = node_id_in(state_dir / FILE), {}
    owners: dict[str, Owner] = {}
    for b in bearers.bearers():
        if b.node_id == own:
            continue
        known = owners.get(b.node_id)
        if known is None or (known.home is None and b.home):
            home = Path(b.home) if b.home else None
            pid = holder(home) if home else 0
            owners[b.node_id] = Owner(b.node, home, pid, bool(pid) or bearers.alive(b.node_id))
        found[int(b.who.removeprefix("pid "))] = b.node_id
    return {pid: owners[node_id] for pid, node_id in found.items()}


def engines(state_dir: Path) -> dict[int, str]:
    """Live processes that carry the markers of this state dir's agent: pid -> shard."""
    try:
        node_id = msgspec.json.decode((state_dir / FILE).read_bytes())["node_id"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return {}
    marked = process.sweep(str(node_id), process.all_stats())
    return {m.stat.pid: shard for (shard, _), marks in marked.items() for m in marks}
