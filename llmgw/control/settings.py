"""How control is started, and what of it cannot work. May not read the environment or a file."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path

from msgspec import Struct

from llmgw.config import CONTROL_LISTEN, GATEWAY_LISTEN, Address, address
from llmgw.control.lease import spec
from llmgw.errors import UsageError

DIGEST = re.compile("sha256:[0-9a-f]{64}")


class ControlSettings(Struct, frozen=True, kw_only=True):
    """`gateway` None: it runs elsewhere. `state_dir`: where the inventory is, unless `inventory` names another file.

    `token` opens everything, `node_token` what agents and gateways ask; "" where loopback is guard enough.
    """

    catalog: Path
    state_dir: Path
    inventory: Path | None = None
    listen: Address = address(CONTROL_LISTEN, "listen")
    gateway: Address | None = address(GATEWAY_LISTEN, "gateway")
    lease: str = "file"
    #: wait where another control has the lease of this file, instead of ending
    standby: bool = False
    #: HOST or HOST:PORT where others find it; "": as it listens
    advertise: str = ""
    settle_timeout_s: float = 60.0
    keep_unknown: bool = False
    #: digest of the plan that a start may have; "" for any
    require_plan: str = ""
    #: of the gateway that control starts; 0: as many as it finds right
    workers: int = 0
    token: str = ""
    node_token: str = ""
    insecure: bool = False
    #: of one's own; "" makes one beyond loopback, unless `insecure`
    tls_cert: str = ""
    tls_key: str = ""

    @property
    def gateway_dir(self) -> Path:
        """State of the gateway that control starts."""
        return self.state_dir / "gateway"

    @property
    def inventory_path(self) -> Path:
        return self.inventory or self.state_dir / "inventory.db"

    def advertised(self, port: int) -> Address | None:
        """As `--advertise` has it, on the port that it listens on where none is said; None where nothing is."""
        if not self.advertise:
            return None
        host, colon, given = self.advertise.rpartition(":")
        bare = not colon or (":" in host and not host.startswith("["))
        if bare or self.advertise.endswith("]"):
            host, given = self.advertise, str(port)
        found = address(f"{host}:{given}", "--advertise")
        if found.every:
            msg = f"--advertise {self.advertise} is no address that others can reach"
            raise UsageError(msg, "write the one of this box on their network")
        return found

    def check(self) -> None:
        """Agents execute what control sends: whoever may speak to it beyond this box must show that he may."""
        spec.check(self.lease)
        if not self.listen.loopback and not self.token and not self.insecure:
            msg = f"--listen {self.listen} is open to the network and no token is set"
            hint = (
                f"`llmgw token new --operator --inventory {self.inventory_path}` makes one, or set LLMGW_TOKEN; "
                "or mean it: --insecure"
            )
            raise UsageError(msg, hint)
        if self.gateway is not None and self.gateway == self.listen and self.listen.port:
            msg = f"--listen and --gateway are both {self.listen}"
            raise UsageError(msg, "give the gateway a port of its own")
        if self.require_plan and not DIGEST.fullmatch(self.require_plan):
            msg = f"--require-plan {self.require_plan[:80]!r} is no digest of a plan"
            raise UsageError(msg, "`llmgw adopt --dry-run` prints it: sha256: and 64 hex digits")
        if self.advertise:
            self.advertised(0)
        if self.settle_timeout_s < 0:
            msg = f"--settle-timeout {self.settle_timeout_s:g}s is negative"
            raise UsageError(msg, "60s is the default, 0s waits for nobody")


def allowed_host(host: str, own: str) -> bool:
    """Whether a Host header may be meant for us: a page elsewhere can point its own name at a loopback address."""
    name = host.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name in ("localhost", own.lower()):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
