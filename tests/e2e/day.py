"""What the sessions of a day share: what each task's table expects, fleets with made-up cards, and what is typed often.

Answers for: EXPECTED, so that a new recording cannot lose what a task is about. It may not check anything else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from scripts.fleet import Fleet, wait_for
from scripts.ports import free_port, free_range
from tests.agent.cards import Cards
from tests.e2e.transcript import Session

ELSEWHERE = {6, 22}
#: Task -> what its table expects to be seen, as regular expressions of the transcript.
EXPECTED: dict[int, tuple[str, ...]] = {
    1: (r"^llmgw VERSION$",),
    2: (r"^2> llmgw: no control at 127\.0\.0\.1:CONTROL_PORT", r"^2> hint: .*`llmgw init`.*`llmgw up`", r"^\[exit 3\]"),
    3: (r"^# yaml-language-server: \$schema=", r"^version: 1"),
    4: (r"^ok: 1 model", r'catalog\.yaml:3:\d+: unknown key "ttl" .* did you mean "scaling.idle_timeout"\?', r"exit 1"),
    5: (r"control ends; engines and the gateway keep running", r"agent ends, its engines keep running", r"1 engine"),
    7: (r"^\? foreign .*matches main", r"^take over: llmgw adopt box1:PID1 --as alpha/main", r"nothing was restarted"),
    8: (r"^box2  ready  0 RTX 3090", r"gen4 x16 of gen4 x16  570\.86\.15", r"24\.0 GiB"),
    9: (r'"id":"alpha","aliases":\["first"\],"context_length":32768', r'"id":"away"', r"box2  unreachable"),
    10: (r"loading 63% eta AGE", r"hello from cold"),
    11: (r"loading", r"ready"),
    12: (r"^NODE  STATE  GPU  MEMORY  POWER  ENGINES  FREE  RESERVED  FOREIGN", r"NOT OURS", r"comfy"),
    13: (r"scaling\.min: 0 -> 1 \(live\)", r"Restart would disturb no engine"),
    14: (r"-/\+ roll  alpha-ID1  .*-c 32768 -> 65536", r"= adopt  beta-ID1/0", r"1 roll"),
    15: (r"deep-ID1/0 .*ready", r"deep-ID1/1 .*ready", r"deep-ID2/0 .*ready", r"deep-ID2/1 .*ready"),
    16: (r"cannot allocate memory|out of memory", r"exited with code 3", r"shorten the context", r"llmgw clear broken"),
    17: (r"^broken$", r"^alpha-ID1$", r"^2> llmgw: there is no node, model or replica called nobody$"),
    18: (r"^\[exit 1\]", r"^degraded: ", r"^\[exit 3\]"),
    19: (r"GPU 0 of box1 is drained", r"503", r"may be used again"),
    20: (r"b8933", r"b9402", r"-/\+ roll"),
    21: (r"^exit code of the dry run: 0$", r"the same pid"),
    23: (r"only what runs on box1 is shown", r"^\[exit 3\]", r"the same pid"),
    24: (r"box2  unreachable AGE", r"what it runs is left alone", r"the same pid"),
    25: (r"a record is unreadable.* the file is kept  file=FOLDER/agent", r"= adopt  alpha-ID1/0", r"the same pid"),
}  # fmt: skip


class Day:
    """Sessions of one fleet, each checked at its end."""

    def __init__(self, fleet: Fleet, *models: str) -> None:
        self.fleet = fleet
        self.models = models

    def task(self, number: int, title: str) -> Session:
        return Session(self.fleet, number, title, self.models)

    def check(self, session: Session) -> None:
        session.check(EXPECTED[session.number])


class CardFleet(Fleet):
    """Its parts find the fake driver library."""

    cards: Cards

    @property
    @override
    def env(self) -> dict[str, str]:
        return super().env | self.cards.env


def with_cards(fleet: Fleet, cards: Cards) -> CardFleet:
    fleet.__class__ = CardFleet
    assert isinstance(fleet, CardFleet)
    fleet.cards = cards
    fleet.more["agent"] = ["--gpus", "auto"]
    return fleet


def second_box(fleet: Fleet, gpus: str = "none") -> None:
    ports = free_range()
    fleet.ranges.append(ports)
    fleet.more["box2"] = [
        *("agent", "--node", "box2", "--listen", f"127.0.0.1:{free_port()}", "--gpus", gpus),
        *("--ports", "{}-{}".format(*ports), "--state-dir", str(fleet.folder / "box2")),
    ]


def tidy(fleet: Fleet) -> None:
    """What has ended is recorded and out of the picture; a moment later than the last thing that people wait for."""
    url = f"{fleet.urls['control']}/api/v1/plan"
    wait_for(lambda: fleet.http.get(url).json()["summary"]["terminal"] == 0, "ended records gone")


def pid_of(fleet: Fleet, name: str) -> int:
    return int(fleet.ready(name)["shards"][0]["pid"])


def write(path: Path, **models: Any) -> None:
    text = yaml.safe_dump({"version": 1, "models": models}, sort_keys=False)
    path.write_text(text)


CHAT = (
    "curl -sN -o answer -w '%{http_code}\\n' $GATEWAY/v1/chat/completions -H 'content-type: application/json' "
    """-d '{"model":"NAME","stream":STREAM,"messages":[{"role":"user","content":"hi"}]}'"""
)


def chat(name: str, *, stream: bool = False) -> str:
    return CHAT.replace("NAME", name).replace("STREAM", json.dumps(stream))


def said(file: str) -> str:
    """The words of a stream."""
    return rf"sed -n 's/^data: {{/{{/p' {file} | jq -j '.choices[0].delta.content // empty'; echo"
