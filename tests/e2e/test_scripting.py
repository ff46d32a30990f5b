"""Every recipe of docs/scripting.md is run as it stands there, one after the other, against a real fleet."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.fleet import Fleet, wait_for
from scripts.generated import ROOT
from tests.beds import needs
from tests.e2e.conftest import Make, fake, model

PAGE = ROOT / "docs" / "scripting.md"
RECIPES = re.findall(
    r"^### (\d+)\. (.+?)$.*?^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
)
GPUS = [
    {"uuid": f"GPU-{i}", "index": i, "name": "card", "memory": 8 << 30, "memory_used": 0}
    for i in range(2)
]
Look = Callable[[Fleet, str], bool]
#: What each must print, and what must be so after it; by number.
TRUE: dict[int, Look] = {
    2: lambda _, out: out == "",
    3: lambda _, out: out.strip() == "true",
    4: lambda _, out: out == "ok: 2 models, 2 profiles\n",
    5: lambda _, out: out == "0\n",
    6: lambda f, out: out == (f.folder / "work/applied.txt").read_text() and "is in use" in out,
    7: lambda f, _: (f.folder / "work/catalog.tar").exists() and (f.status() or {})["paused"] is None,
    8: lambda f, _: (f.folder / "work/inventory.bak").stat().st_size > 1000,
    9: lambda _, out: out == "",
    10: lambda _, out: out == "llmgw OK\n",
    11: lambda _, out: out == "",
    12: lambda _, out: out.splitlines() == ["box1/0 8192", "box1/1 8192"],
    13: lambda _, out: not any(w in out for w in ("--alias alpha", "--alias beta")),  # others of this box are
    14: lambda _, out: "alpha-" in out and "is ready" in out,
    15: lambda _, out: out == "it has not ended yet\n",
    16: lambda f, _: bool(f.replicas("beta")),
    17: lambda _, out: "beta" in out,
    18: lambda f, out: "play" in out and not any(g["drained"] for g in (f.status() or {})["nodes"][0]["gpus"]),
    19: lambda _, out: sorted(out.split()) == ["home-assistant", "open-webui"],
    20: lambda _, out: bool(out.strip()),
}  # fmt: skip


def write_tools(fleet: Fleet, bins: Path) -> None:
    """`llmgw` as installed; and what stands for `systemctl restart llmgw-control` on this page."""
    bins.mkdir()
    program = bins / "llmgw"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m llmgw "$@"\n')
    restart = bins / "restart_control"
    words = " ".join(fleet.words("control"))
    pid, log = fleet.folder / "control.pid", fleet.log("control")
    restart.write_text(
        f"""#!/bin/sh
kill $(cat {pid})
while kill -0 $(cat {pid}) 2>/dev/null; do sleep 0.05; done
{program} {words} "$@" >>{log} 2>&1 &
echo $! > {pid}
until said=$({program} status -o json 2>/dev/null) && echo "$said" | grep -q '"settling": null'; do sleep 0.1; done
"""
    )
    for file in (program, restart):
        file.chmod(0o755)


def test_there_are_twenty_and_each_is_looked_at() -> None:
    assert [int(number) for number, _, _ in RECIPES] == list(range(1, 21))


@needs("jq", "curl", "timeout", root=False)
def test_every_recipe_works(make: Make, subtests: pytest.Subtests) -> None:
    beta = model(fake("--alias", "beta"), least=0)
    fleet = make({"alpha": model(fake("--alias", "alpha")), "beta": beta})
    gpus = fleet.folder / "gpus.json"
    gpus.write_text(json.dumps(GPUS))
    fleet.more["agent"] = ["--gpus", str(gpus)]
    bins, work = fleet.folder / "bin", fleet.folder / "work"
    write_tools(fleet, bins)
    work.mkdir()
    env = fleet.env | {
        "PATH": f"{bins}:{os.environ['PATH']}", "GATEWAY": fleet.urls["gateway"],
    }  # fmt: skip
    fleet.start("agent")
    (fleet.folder / "control.pid").write_text("999999999")
    subprocess.run(["restart_control"], env=env, check=True, timeout=60)
    try:
        fleet.ready("alpha")
        for number, title, script in RECIPES:
            with subtests.test(title, number=number):
                said = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", script], env=env, cwd=work, capture_output=True,
                    text=True, timeout=90, stdin=subprocess.DEVNULL, check=False,
                )  # fmt: skip
                assert said.returncode == 0, (script, said.stdout, said.stderr)
                true = TRUE.get(int(number))
                assert true is None or true(fleet, said.stdout), (script, said.stdout, said.stderr)
                wait_for(lambda: fleet.replicas("alpha"), "alpha goes on being ready")
    finally:
        pid = int((fleet.folder / "control.pid").read_text())
        os.kill(pid, 9)
