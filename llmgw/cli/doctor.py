"""`llmgw doctor`: what is wrong on this node, one line a fact. May not judge, nor change anything.

The settings are read as `llmgw agent` reads them, so that it looks at the same state dir, ports and control.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmgw import config
from llmgw.cli import options
from llmgw.cli.daemons import AGENT_KEYS, PORTS, host_name, joined, port_range, words_of
from llmgw.errors import EXIT_DIFFERENCE, EXIT_OK, CatalogError, LlmgwError

if TYPE_CHECKING:
    from llmgw.agent.doctor.look import Check
    from llmgw.core.types.catalog import Catalog


def doctor(
    context: typer.Context,
    *,
    output: options.Output = "table",
    control: options.ControlUrls = None,
    node: options.Node = None,
    state_dir: options.AgentState = None,
    ports: options.Ports = None,
    gpus: options.Gpus = None,
    catalog: options.Catalog = None,
    config_file: options.ConfigFile = None,
) -> int:
    """Say what is wrong on this node: driver, ports, clock, control.

    llmgw doctor --config agent.yaml looks at what the agent would use: devices, permissions, kill mode too. Give it
    what the agent is given. Changes nothing; exit 1 when a line says fail.
    """
    flags = {key: value for key, value in locals().items() if key in AGENT_KEYS}
    path = Path(config.Given({"config": config_file}).text("config", ""))
    file = config.read_file(path, AGENT_KEYS) if path.name else None
    given = config.Given(flags, file=file, path=path)
    folder = Path(str(state_dir or (file or {}).get("state_dir") or config.state_dir("agent")))
    place = Path(config.Given({"catalog": catalog}).text("catalog", str(config.catalog_path())))
    import json
    import sys

    from llmgw.cli import log
    from llmgw.render.page import Table, look, show

    log.configure()
    name = given.text("node", host_name())
    found = _checks(name, given, folder, place)
    bad = any(check.level == "fail" for check in found)
    code = EXIT_DIFFERENCE if bad else EXIT_OK
    if output == "json":
        checks = [
            {"level": c.level, "name": c.name, "fact": c.fact, "try": c.hint or None} for c in found
        ]
        whole = {"schema": "llmgw.doctor/1", "node": name, "checks": checks, "exit_code": code}
        sys.stdout.write(json.dumps(whole, indent=2) + "\n")
    else:
        rows = [[c.level, c.name, f"{c.fact} - {c.hint}" if c.hint else c.fact] for c in found]
        show([Table((), rows)], look(context.find_root().params["_color"]))
    return code


def _checks(name: str, given: config.Given, folder: Path, place: Path) -> list[Check]:
    import time

    from llmgw.agent import doctor as doctors
    from llmgw.agent.doctor import doors

    named, beside = given.items("control"), folder.parent / "control"
    given = _as_it_runs(given, folder)
    controls, join = joined(given, folder)
    words = words_of(given, join)
    source = words.get("gpus", "auto")
    token = join.token
    return doctors.examine(
        doctors.Node(
            name=name,
            state_dir=folder,
            ports=port_range(words.get("ports", PORTS)),
            gpus=source,
            controls=controls,
            remembered=() if named else tuple(filter(None, (config.reached(beside),))),
            memory=beside / config.URL_FILE,
            token=token,
            catalog=_catalog(place),
            cards=lambda: doors.cards(source),
            unsynchronised=doors.unsynchronised,
            time_s=time.time,  # noqa: TID251 - compared with another clock
            ask=lambda url, path: doors.ask(url, path, token, join.trust),
            engines=lambda: doors.engines(folder),
            others=lambda: doors.others(folder),
            tell=doors.tell,
        )
    )


def _as_it_runs(given: config.Given, folder: Path) -> config.Given:
    """Where nothing was said of ports or control here, as the agent that runs was told: its words, its environment."""
    from llmgw.agent.doctor.look import holder

    pid = holder(folder)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return given
    env = {}
    for name in ("PORTS", "CONTROL"):
        flag = f"--{name.lower()}"
        told = [words[i + 1] for i, word in enumerate(words[:-1]) if word == flag]
        told += [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
        told = told or [p.partition("=")[2] for p in pairs if p.startswith(f"LLMGW_{name}=")]
        if any(told):
            env[f"LLMGW_{name}"] = ",".join(told) if name == "CONTROL" else told[-1]
    return given.beside(env)


def _catalog(place: Path) -> Catalog | Check:
    from llmgw import catalog as catalogs
    from llmgw.agent.doctor.look import Check

    if not place.exists():
        return Check(
            "skip", "catalog", f"there is none at {place} to look for programs and weights"
        )
    try:
        return catalogs.load(place.absolute())
    except CatalogError as e:
        more = f" (and {len(e.problems) - 1} more)" if len(e.problems) > 1 else ""
        return Check("fail", "catalog", f"{e.problems[0]}{more}", f"llmgw catalog check {place}")
    except LlmgwError as e:
        return Check("warn", "catalog", e.message, e.hint)
