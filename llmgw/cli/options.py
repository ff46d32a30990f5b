"""Options that several verbs have, so that they are spelled and explained alike. May not hold a value."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Output = Annotated[
    Literal["table", "json"], typer.Option("-o", "--output", help="Form of the answer.")
]
ControlUrl = Annotated[
    str | None,
    typer.Option(
        help="Control's URL. [env: LLMGW_CONTROL] [default: where this box's control (of LLMGW_STATE_DIR) ran last, "
        "or the one that its agent joined, else http://127.0.0.1:8801]"
    ),
]
ControlUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--control",
        help="Control's URL; repeat it for several. [env: LLMGW_CONTROL] "
        "[default: http://127.0.0.1:8801; of an agent the control that it joined or that ran beside it]",
    ),
]
Catalog = Annotated[
    Path | None,
    typer.Option(
        help="Catalog file, or a directory of *.yaml. [env: LLMGW_CATALOG] "
        "[default: /etc/llmgw/catalog.yaml, else ./catalog.yaml]"
    ),
]
Inventory = Annotated[
    Path | None,
    typer.Option(
        help="Control's inventory file. [env: LLMGW_INVENTORY] [default: control/inventory.db "
        "in the state folder]"
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen beyond loopback without a token, and without TLS. [env: LLMGW_INSECURE]",
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Certificate (PEM) to serve with, beyond loopback instead of a self-signed one. "
        "[env: LLMGW_TLS_CERT]",
    ),
]
TlsKey = Annotated[
    str | None, typer.Option(metavar="FILE", help="Key of --tls-cert. [env: LLMGW_TLS_KEY]")
]
Node = Annotated[
    str | None,
    typer.Option(help="Name of this node. [env: LLMGW_NODE] [default: the host's name]"),
]
Ports = Annotated[
    str | None, typer.Option(help="Ports for engines. [env: LLMGW_PORTS] [default: 18000-18999]")
]
Gpus = Annotated[
    str | None,
    typer.Option(
        metavar="auto|none|FILE", help="Where GPUs are read. [env: LLMGW_GPUS] [default: auto]"
    ),
]
Gateway = Annotated[
    str | None,
    typer.Option(help="HOST:PORT for clients. [env: LLMGW_GATEWAY] [default: 127.0.0.1:8800]"),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Gateway processes that serve clients. [env: LLMGW_WORKERS] "
        "[default: one per two cores]"
    ),
]
AgentState = Annotated[
    Path | None, typer.Option("--state-dir", help="Folder of the journal and the engines' logs.")
]
NodeAddress = Annotated[
    str | None,
    typer.Option(
        help="This node's address for control and gateway; engines bind it. auto: the one by which "
        "it reaches control. [env: LLMGW_ADDRESS] [default: 127.0.0.1]"
    ),
]
AgentListen = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of the read-only API, or none. [env: LLMGW_LISTEN] "
        "[default: port 8802 of the address]"
    ),
]
Pools = Annotated[
    list[str] | None,
    typer.Option(help="A pool this node is in. May be repeated. [env: LLMGW_POOL]"),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(metavar="K=V", help="A label. May be repeated. [env: LLMGW_LABEL]"),
]
Fabrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=ADDR[:HCA,...]",
        help="A fast network this node is on. May be repeated. [env: LLMGW_FABRIC]",
    ),
]
PowerW = Annotated[
    float | None,
    typer.Option("--power-w", help="Watts this node may draw. [env: LLMGW_POWER_W]"),
]
GpuPowerLimitW = Annotated[
    float | None,
    typer.Option(
        "--gpu-power-limit-w",
        help="Watts each NVIDIA GPU may draw: set where that is permitted (root), else a warning; "
        "left as it is if not given. [env: LLMGW_GPU_POWER_LIMIT_W]",
    ),
]
Circuit = Annotated[
    str | None, typer.Option(help="Breaker panel it hangs on. [env: LLMGW_CIRCUIT]")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="The same settings as a YAML file. [env: LLMGW_CONFIG]"),
]
SettleTimeout = Annotated[
    str | None,
    typer.Option(
        help="How long to wait for known nodes before acting. [env: LLMGW_SETTLE_TIMEOUT] "
        "[default: 60s]"
    ),
]
KeepUnknown = Annotated[
    bool,
    typer.Option(
        "--keep-unknown", help="Leave engines that nothing claims. [env: LLMGW_KEEP_UNKNOWN]"
    ),
]
Lease = Annotated[
    str | None,
    typer.Option(
        metavar="file|etcd://...",
        help="Who leads among several controls: file, on one host, or etcd://H1:2379,H2:2379[?ttl=10s]; "
        "etcds:// for TLS with ca=, cert=, key=. [env: LLMGW_LEASE] [default: file]",
    ),
]
Standby = Annotated[
    bool,
    typer.Option(
        "--standby",
        help="Where another control has the file's lease, wait for it and take over. "
        "[env: LLMGW_STANDBY]",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="Where other controls and gateways find this one, with --lease etcd. [env: LLMGW_ADVERTISE] "
        "[default: --listen; of 0.0.0.0 the address by which it reaches etcd]",
    ),
]
RequirePlan = Annotated[
    str | None,
    typer.Option(
        metavar="DIGEST",
        help="Carry out this plan only, as `adopt --dry-run` printed it; else adopt, route and wait "
        "for `llmgw confirm`. [env: LLMGW_REQUIRE_PLAN]",
    ),
]
GatewayOrNone = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of the gateway it starts, or none. [env: LLMGW_GATEWAY] "
        "[default: 127.0.0.1:8800]"
    ),
]
ControlListen = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of the API. [env: LLMGW_LISTEN] [default: 127.0.0.1:8801]"),
]
GatewayListen = Annotated[
    str | None,
    typer.Option(help="HOST:PORT for clients. [env: LLMGW_LISTEN] [default: 127.0.0.1:8800]"),
]
