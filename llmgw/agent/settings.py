"""What an agent is told at its start: flags, environment and file, merged by the CLI.

May not read any of them itself.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from llmgw.config import Trust
from llmgw.core.supervise.claims import NAME
from llmgw.core.types.messages import Fabric
from llmgw.errors import UsageError


class AgentSettings(Struct, frozen=True, kw_only=True):
    """`gpus` is auto, none or a file of GPU facts; `names` are further Host names the API answers to.

    `token` is the node token (to control and on the API), `operator_token` opens the API as well; `listen` "" or "none"
    leaves the API out.
    """

    controls: tuple[str, ...]
    node: str
    state_dir: Path
    address: str = "127.0.0.1"
    #: the word for it, which is kept: auto may be another address tomorrow
    address_given: str = ""
    #: the same for what else a start without --control finds again, by the flags' names
    words_given: dict[str, str] = {}
    listen: str = "127.0.0.1:8802"
    ports: tuple[int, int] = (18000, 18999)
    pools: tuple[str, ...] = ("default",)
    labels: dict[str, str] = {}
    fabrics: dict[str, Fabric] = {}
    power_w: float | None = None
    circuit: str | None = None
    gpus: str = "auto"
    #: set on each NVIDIA card, None: left as it is
    gpu_power_limit_w: float | None = None
    token: str = ""
    trust: Trust = Trust()
    #: of the API beyond loopback; "" makes one, unless `insecure`
    tls_cert: str = ""
    tls_key: str = ""
    operator_token: str = ""
    insecure: bool = False
    names: tuple[str, ...] = ()


def check_node(name: str) -> None:
    """Ids become paths, and a node's name stands in them."""
    if not NAME.fullmatch(name):
        msg = f"--node {name!r} is no name: letters, digits, . _ and -, 63 at most, a letter or digit first"
        raise UsageError(msg, "write it like box1")
