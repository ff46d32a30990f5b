"""`llmgw up`: where its parts listen, and that it leaves no box behind which joined control elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmgw.cli import ask, supervise
from llmgw.control import reach, store
from llmgw.core.types.messages import NodeReport
from tests.cli.say import Said, llmgw

URL = "https://10.0.0.11:8801"
PIN = f"sha256:{'ab' * 32}"


class Parts:
    """In place of the supervisor: what would be started."""

    words: Mapping[str, Sequence[str]] = {}
    places: Mapping[str, str] = {}

    status = ""

    def __init__(
        self,
        parts: Sequence[Any],
        peers: Mapping[str, ask.Peer],
        _token: Any,
        _brought: Any,
        status: str,
    ) -> None:
        Parts.status = status
        Parts.words = {part.name: part._words for part in parts}
        Parts.places = {name: peer.place for name, peer in peers.items()}

    def run(self) -> int:
        return 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    catalog = tmp_path / "catalog.yaml"
    catalog.write_text("version: 1\nmodels: {}\n")
    for name in ("LLMGW_CONTROL", "LLMGW_LISTEN", "LLMGW_AGENT", "LLMGW_ADVERTISE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LLMGW_CATALOG", str(catalog))
    monkeypatch.setenv("LLMGW_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(supervise, "Supervisor", Parts)
    Parts.words = Parts.places = {}
    return tmp_path


def flag(part: str, name: str) -> str:
    words = Parts.words[part]
    return words[words.index(name) + 1]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("agent", ["127.0.0.1:3", "http://127.0.0.1:3", " http://127.0.0.1:3/ "])
def test_where_they_listen_is_a_matter_of_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    """Of the agent as the other verbs take it: one variable says where it is."""
    monkeypatch.setenv("LLMGW_LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("LLMGW_GATEWAY", "127.0.0.1:2")
    monkeypatch.setenv("LLMGW_AGENT", agent)
    assert llmgw("up").code == 0
    assert (flag("control", "--listen"), flag("agent", "--listen")) == (
        "127.0.0.1:1",
        "127.0.0.1:3",
    )
    assert flag("agent", "--control") == "http://127.0.0.1:1"
    assert Parts.places["gateway"] == "127.0.0.1:2"
    assert llmgw("up", "--listen", "127.0.0.1:4", "--agent", "127.0.0.1:5").code == 0
    assert (flag("control", "--listen"), flag("agent", "--listen")) == (
        "127.0.0.1:4",
        "127.0.0.1:5",
    )


@pytest.mark.usefixtures("folder")
def test_a_variable_that_is_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_AGENT", "https://box2:8802")
    said = llmgw("up")
    assert (said.code, Parts.words) == (2, {})
    assert said.err.startswith("llmgw: LLMGW_AGENT: 'https://box2:8802' is not HOST:PORT\n")
    monkeypatch.setenv("LLMGW_AGENT", "10.0.0.1:8802")
    assert "10.0.0.1:8802 for the agent is not loopback" in llmgw("up").err


def test_the_agent_is_asked_where_up_was_told_to_have_it() -> None:
    assert ask.agent("127.0.0.1:8802").url == "http://127.0.0.1:8802"
    assert ask.agent("https://box2:8802").url == "https://box2:8802"


def wide(folder: Path, *nodes: str) -> Said:
    """`up`, after a control of this folder that listened for other boxes, with these nodes in its inventory."""
    control, agent = folder / "control", folder / "agent"
    for place in (control, agent):
        place.mkdir(exist_ok=True)
    (agent / "identity.json").write_text(json.dumps({"node_id": "id-box1"}))
    store.apply_reports(
        control / "inventory.db", [NodeReport(node=name, node_id=f"id-{name}") for name in nodes]
    )
    reach.remember(control, "https://127.0.0.1:8801", [f"{URL}#{PIN}"])
    return llmgw("up", "--listen", "127.0.0.1:9801")


def test_a_box_that_joined_could_not_come_back_so_it_is_not_left(folder: Path) -> None:
    said = wide(folder, "box1", "box2", "box3")
    assert (said.code, said.out, Parts.words) == (1, "", {})
    assert said.err == (
        f"llmgw: control of {folder / 'control'} was reached at {URL} when it ran last, and box2, box3 joined it "
        "there; `llmgw up` listens on 127.0.0.1:9801 only, and they could not come back\n"
        "hint: start `llmgw control --listen 0.0.0.0:9801` and `llmgw agent`, each by itself; for one box again: "
        "start `llmgw control --listen 0.0.0.0:9801`, stop the agent of box2, box3, then `llmgw forget box2`, "
        "`llmgw forget box3`, end that control, and `llmgw up`\n"
    )
    assert reach.remembered(folder / "control") == (f"{URL}#{PIN}",)


def test_one_box_goes_back_to_loopback(folder: Path) -> None:
    assert wide(folder, "box1").code == 0
    assert Parts.words


def test_a_proxy_of_which_control_is_told_again_leads_there_still(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_ADVERTISE", "box1.example:443")
    assert wide(folder, "box1", "box2").code == 0


def test_what_cannot_be_read_is_controls_to_say(folder: Path) -> None:
    wide(folder, "box1", "box2")
    (folder / "control" / "inventory.db").write_bytes(b"no database" * 400)
    assert llmgw("up").code == 0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("--ports", "x"), "--ports: 'x' is not a range of ports"),
        (("--gpus", "/nowhere.json"), "--gpus /nowhere.json: cannot be read"),
        (("--node", "a b"), "--node 'a b' is no name: letters, digits, . _ and -"),
        (("--node", "up?"), "--node 'up?' is no name"),
    ],
)
def test_what_the_agent_would_refuse_is_refused_before_anything_is_started(
    words: tuple[str, str], fact: str
) -> None:
    said = llmgw("up", *words)
    assert said.code != 0
    assert fact in said.err
    assert Parts.words == {}


@pytest.mark.usefixtures("folder")
def test_a_name_of_the_node_is_the_agents_to_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only the agent would read it; a capital letter is as good as any."""
    monkeypatch.setenv("LLMGW_NODE", "box/1")
    said = llmgw("up")
    assert (said.code, Parts.words) == (2, {})
    assert said.err.startswith("llmgw: --node 'box/1' is no name")
    assert llmgw("up", "--node", "Box1").code == 0
    assert flag("agent", "--node") == "Box1"


def test_the_way_to_look_at_it_leads_to_its_folder(folder: Path, tmp_path: Path) -> None:
    assert llmgw("up", "--state-dir", tmp_path / "my box").code == 0
    assert Parts.status == f"`export LLMGW_STATE_DIR='{folder}/my box'`, then  llmgw status"
