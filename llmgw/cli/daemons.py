"""`llmgw control`, `agent`, `gateway`: read the settings, start the log, run the part in the foreground.

Answers for: the names and forms of their settings. What a value means is the part's business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from llmgw import config, lean
from llmgw.cli import options
from llmgw.errors import UsageError

AGENT_KEYS = (
    "control",
    "node",
    "state_dir",
    "address",
    "listen",
    "ports",
    "pool",
    "label",
    "fabric",
    "power_w",
    "circuit",
    "gpus",
    "gpu_power_limit_w",
    "insecure",
    "pin",
    "ca",
    "tls_cert",
    "tls_key",
)
#: What an agent keeps besides the control that it joined, and its address.
KEPT = ("node", "listen", "ports", "gpus")
PORTS = "18000-18999"


def control(
    *,
    catalog: options.Catalog = None,
    inventory: options.Inventory = None,
    listen: options.ControlListen = None,
    gateway: options.GatewayOrNone = None,
    lease: options.Lease = None,
    standby: options.Standby = False,
    advertise: options.Advertise = None,
    settle_timeout: options.SettleTimeout = None,
    keep_unknown: options.KeepUnknown = False,
    require_plan: options.RequirePlan = None,
    workers: options.Workers = None,
    insecure: options.Insecure = False,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
) -> int:
    """Run the control plane: it decides what runs where.

    llmgw control --catalog /etc/llmgw/catalog.yaml --listen 127.0.0.1:8801. TERM or Ctrl-C ends it and nothing
    else: engines and the gateway keep running. HUP reloads the catalog.
    """
    given = config.Given(dict(locals()))  # before anything else is: the names are the settings'
    lean.load()
    from llmgw.cli import log
    from llmgw.control.main import run
    from llmgw.control.node_tokens import shared
    from llmgw.control.settings import ControlSettings

    log.configure()
    file = Path(given.text("inventory", str(config.inventory_path())))
    gateway_place = None
    if given.text("gateway", "") != "none":
        gateway_place = given.address("gateway", config.GATEWAY_LISTEN)
    return run(
        ControlSettings(
            catalog=Path(given.text("catalog", str(config.catalog_path()))).absolute(),
            state_dir=file.parent,
            inventory=file,
            listen=given.address("listen", config.CONTROL_LISTEN),
            gateway=gateway_place,
            lease=given.text("lease", "file"),
            standby=given.switch("standby"),
            advertise=given.text("advertise", ""),
            settle_timeout_s=_seconds(given, "settle_timeout", "60s"),
            keep_unknown=given.switch("keep_unknown"),
            require_plan=given.text("require_plan", ""),
            workers=_workers(given),
            token=config.token("LLMGW_TOKEN", file.parent / "token"),
            node_token=config.token("LLMGW_NODE_TOKEN") or shared(file.parent),
            insecure=given.switch("insecure"),
            tls_cert=given.text("tls_cert", ""),
            tls_key=given.text("tls_key", ""),
        )
    )


def agent(
    *,
    control: options.ControlUrls = None,
    node: options.Node = None,
    state_dir: options.AgentState = None,
    address: options.NodeAddress = None,
    listen: options.AgentListen = None,
    ports: options.Ports = None,
    pool: options.Pools = None,
    label: options.Labels = None,
    fabric: options.Fabrics = None,
    power_w: options.PowerW = None,
    circuit: options.Circuit = None,
    gpus: options.Gpus = None,
    gpu_power_limit_w: options.GpuPowerLimitW = None,
    insecure: options.Insecure = False,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    config_file: options.ConfigFile = None,
) -> int:
    """Run this node's agent: it owns the engines' processes.

    llmgw agent --control http://box1:8801 --address 10.0.0.12. TERM or Ctrl-C ends it and leaves the engines
    running.
    """
    flags = {name: value for name, value in locals().items() if name in AGENT_KEYS}
    path = Path(config.Given({"config": config_file}).text("config", ""))
    file = config.read_file(path, AGENT_KEYS) if path.name else None
    given = config.Given(flags, file=file, path=path)
    lean.load("structlog")
    from llmgw.agent.run import run
    from llmgw.agent.settings import AgentSettings
    from llmgw.cli import log

    log.configure()
    # Not LLMGW_STATE_DIR: that is the folder of all parts, of which `state_dir` takes agent/.
    folder = Path(str(state_dir or (file or {}).get("state_dir") or config.state_dir("agent")))
    controls, join = joined(given, folder)
    words = words_of(given, join)
    given_where = given.text("address", join.address or "127.0.0.1")
    where = _address(given_where, controls, join)
    return run(
        AgentSettings(
            controls=controls,
            node=words.get("node") or host_name(),
            state_dir=folder,
            address=where,
            address_given=given_where,
            words_given=words,
            listen=words.get("listen", str(config.Address(where, 8802))),
            ports=port_range(words.get("ports", PORTS)),
            pools=given.items("pool", ["default"]),
            labels=given.pairs("label"),
            fabrics=_fabrics(given),
            power_w=given.number("power_w"),
            circuit=given.text("circuit", "") or None,
            gpus=words.get("gpus", "auto"),
            gpu_power_limit_w=given.number("gpu_power_limit_w"),
            token=join.token,
            trust=join.trust,
            tls_cert=given.text("tls_cert", ""),
            tls_key=given.text("tls_key", ""),
            operator_token=config.token("LLMGW_TOKEN"),
            insecure=given.switch("insecure"),
        )
    )


def gateway(
    *,
    control: options.ControlUrls = None,
    listen: options.GatewayListen = None,
    insecure: options.Insecure = False,
    workers: options.Workers = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder of the last route table.")] = None,
    takeover: Annotated[
        bool,
        typer.Option(
            "--takeover",
            help="Take the place of the gateway of this state dir, which finishes what it has.",
        ),
    ] = False,
    listen_fd: Annotated[int | None, typer.Option("--listen-fd", hidden=True)] = None,
    worker: Annotated[int | None, typer.Option("--worker", hidden=True)] = None,
) -> int:
    """Run a gateway: the OpenAI API for clients.

    llmgw gateway --control http://box1:8801 --listen 0.0.0.0:8800; control starts one of its own. TERM ends it once
    the requests in flight are done.
    """
    lean.load("structlog")
    from llmgw.cli import log
    from llmgw.gateway.main import run, run_worker
    from llmgw.gateway.settings import GatewaySettings, default_workers

    log.configure()
    if worker is not None:
        return run_worker(worker)
    given = config.Given(
        {"control": control, "listen": listen, "insecure": insecure, "workers": workers}
    )
    folder = state_dir or config.state_dir("gateway")
    controls = given.items("control", [config.CONTROL_URL])
    return run(
        GatewaySettings(
            controls=controls,
            state_dir=folder,
            listen=None if listen_fd is not None else given.text("listen", config.GATEWAY_LISTEN),
            listen_fd=listen_fd,
            takeover=takeover,
            workers=_workers(given) or default_workers(),
            token=config.token("LLMGW_NODE_TOKEN", folder / "node-token"),
            trust=config.trust(given, *controls),
            insecure=given.switch("insecure"),
        )
    )


def joined(given: config.Given, folder: Path) -> tuple[tuple[str, ...], config.Join]:
    """The controls of this node's agent and what it shows and believes there: as given, else as it is kept from before.

    What is kept counts for the controls it was kept for, and for no other. An agent that has joined none looks where
    the command line of its box does, and this box's own control is believed as there (`ask.control`).
    """
    before, beside = config.joined(folder), _here(folder.parent / "control")
    kept = _spoken(before, beside)
    controls = given.items("control", kept.controls or beside.controls or [config.CONTROL_URL])
    known = (kept, before, beside, _here(config.inventory_path().parent))
    before = next((join for join in known if join.of(controls).controls), config.Join())
    token = config.token("LLMGW_NODE_TOKEN", folder / "node-token") or before.token
    trust = config.trust(given, *controls, before=before.trust)
    return controls, before._replace(controls=controls, trust=trust, token=token)


def _spoken(before: config.Join, beside: config.Join) -> config.Join:
    """Of the control beside it how it is spoken to by now: `llmgw up` has it in clear, for other boxes it is TLS."""
    same = [url.partition("://")[2] for url in before.controls] == [
        url.partition("://")[2] for url in beside.controls
    ]
    return before._replace(controls=beside.controls, trust=beside.trust) if same else before


def _here(folder: Path) -> config.Join:
    """The control of this folder, as it was reached last."""
    url, trust = config.pinned(config.reached(folder))
    return config.Join((url,), trust) if url else config.Join()


def _workers(given: config.Given) -> int:
    """0: not given."""
    number = given.number("workers")
    if number is None:
        return 0
    if number != int(number) or number < 1:
        msg = f"--workers: {number:g} is no number of processes"
        raise UsageError(msg, "1 or more; left out it is one per two cores")
    return int(number)


def _seconds(given: config.Given, key: str, default: str) -> float:
    from llmgw.catalog.units import parse_duration

    found = parse_duration(given.text(key, default))
    if found is None:
        msg = f"--{key.replace('_', '-')}: never is not possible here"
        raise UsageError(msg, f"write a time like {default}")
    return found


def host_name() -> str:
    """The host's short name, as a name that agents and paths can take."""
    import re
    import socket

    short = socket.gethostname().partition(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]", "-", short).strip("-._")[:63] or "node"


def _address(word: str, controls: tuple[str, ...], join: config.Join) -> str:
    from llmgw.agent.reach import towards

    if word != "auto":
        return word
    where = towards(controls[0]) or join.last_address  # before the network is up: as it was
    if not where:
        msg = f"--address auto: there is no way from here to {controls[0]}"
        raise UsageError(msg, "look at the network, or give this box's address: --address ADDR")
    return where


def words_of(given: config.Given, join: config.Join) -> dict[str, str]:
    """What is given, else what was at the join: the name always, the rest where the control is found by it too.

    Whoever names the control anew (`llmgw up` does) starts from the defaults; under another name the node would be
    refused, or renamed.
    """
    kept = join.words if not given.items("control") else {"node": join.words.get("node", "")}
    found = {flag: given.text(flag, kept.get(flag, "")) for flag in KEPT}
    if found["gpus"] not in {"", "auto", "none"}:
        found["gpus"] = str(Path(found["gpus"]).absolute())  # the next start may be elsewhere
    return {flag: word for flag, word in found.items() if word}


def port_range(text: str) -> tuple[int, int]:
    import re

    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    low, high = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < low <= high < 1 << 16:
        msg = f"--ports: {text!r} is not a range of ports"
        raise UsageError(msg, "write it like 18000-18999")
    return low, high


def _fabrics(given: config.Given) -> dict[str, Any]:
    """`ib0=10.1.0.11:mlx5_0,mlx5_1`; in the environment the commas between HCAs look like those between fabrics."""
    from llmgw.core.types.messages import Fabric

    whole: list[str] = []
    for item in given.items("fabric"):
        if whole and "=" not in item:
            whole[-1] += f",{item}"
        else:
            whole.append(item)
    found = {}
    for name, value in config.Given({"fabric": whole}, {}).pairs("fabric").items():
        host, _, hcas = value.removeprefix("[").partition("]:" if value.startswith("[") else ":")
        names = tuple(hca.strip() for hca in hcas.split(",") if hca.strip())
        found[name] = Fabric(address=host.removesuffix("]"), hcas=names)
    return found
