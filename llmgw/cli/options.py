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
    typer.Option(help="Control's URL. [env: LLMGW_CONTROL] [default: http://127.0.0.1:8801]"),
]
ControlUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--control",
        help="Control's URL; repeat it for several. [env: LLMGW_CONTROL] "
        "[default: http://127.0.0.1:8801]",
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
        "--insecure", help="Listen beyond loopback without a token. [env: LLMGW_INSECURE]"
    ),
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
