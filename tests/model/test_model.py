"""Every world that up to three controls and two agents can come to: who may command is right in all of them.

Real code: `supervise` with its fence, `observe`, `survey`, `decide`, `started`, `Performer`, `memory_of`, `merged`,
`node_report`, `shards_digest`, and what `Leads` asks of a registration (`outranked`, `unfenced`). Modelled here: the
lease store (one holder, one epoch, who it knows), `Leads.lead` and `Leads.fence` as far as they choose an epoch, a
session's queue with its acknowledgements, the wire, and engines that start and end at once. One model is wanted once,
on one GPU that has room for two, so that only the fence keeps a second one off.

The steps: a lease is taken, lapses unknown to its holder (who goes on for as long as it likes: paused, cut off, not
aware), is found lost; a poll is answered and the answer arrives, late, twice or after its session; registrations
likewise, or never; agents tell news, restart, register anew; an operator stops the engine; the lease store comes back
empty; two controls have a file's lease each. Time stands still, but for what waits long: QUIET_S, REIGN_S. News reach
control at once: late news are news not told yet. Epochs are counted, ages are not, so each space below is finite and
looked at whole: 300 to 25,000 worlds each, 115,000 together, in 14 s of CPU. `python -m tests.model --help` looks at
larger ones; 300,000 worlds take 20 s and 1 GB.

The laws: no effect of a lower epoch once a higher one is stored; one leader an epoch; no effect of an old session;
nothing is decided about a node before its fencing answer; one engine where one is wanted; of two files' leaders one is
obeyed; it always comes to rest, and then somebody leads, is obeyed, and knows the one engine that runs.

Beyond what is shown: a store that lost everything, with a control that has met nobody but a new node, starts there at
once what may run elsewhere (A47: all that it has heard of were never commanded).
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.model.explore import Found, explore
from tests.model.rules import PLANTED, Rules
from tests.model.steps import Model
from tests.model.values import Faults


class Space(NamedTuple):
    """`worlds`: at least so many there are; fewer would mean that steps are missing."""

    worlds: int
    lease: str
    faults: Faults
    nodes: int = 1
    controls: int = 2

    def look(self, rules: Rules, *, running: bool) -> Found:
        model = Model(self.lease, rules, self.controls)
        begin = model.running if running else model.start
        return explore(model, begin(self.nodes, self.faults))


#: Nobody has led or registered yet.
FRESH = {
    "a lease lapses": Space(8_000, "etcd", Faults(lapses=1)),
    "the store is lost": Space(11_000, "etcd", Faults(rollbacks=1)),
    "an agent registers anew": Space(1_000, "etcd", Faults(again=1)),
    "a file's control is killed": Space(5_000, "file", Faults(lapses=1)),
    "two files": Space(1_000, "files", Faults()),
}
#: A leads, the engine runs, everybody knows.
RUNNING = {
    "calls come late": Space(2_500, "etcd", Faults(lapses=1, again=1, losses=1)),
    "an engine is stopped": Space(10_000, "etcd", Faults(lapses=1, stops=1, again=1)),
    "answers come twice": Space(2_500, "etcd", Faults(lapses=1, repeats=1, stops=1)),
    "two nodes": Space(15_000, "etcd", Faults(lapses=1, again=1), nodes=2),
    "three controls": Space(4_000, "etcd", Faults(lapses=2), controls=3),
    "the store is lost": Space(3_000, "etcd", Faults(lapses=1, rollbacks=1)),
    "an agent restarts": Space(1_000, "etcd", Faults(lapses=1, restarts=1)),
    "a file's control is killed": Space(200, "file", Faults(lapses=1, again=1)),
    "a lone control is killed": Space(200, "file", Faults(lapses=2, again=1), controls=1),
    "two files": Space(300, "files", Faults(lapses=1, minutes=1, again=1)),
}


def holds(found: Found, space: Space) -> None:
    assert not found.wrong, f"\n{found.told}"
    assert found.whole
    assert found.worlds > space.worlds
    assert found.rest


@pytest.mark.parametrize("name", RUNNING)
def test_a24_from_a_fleet_that_runs_no_law_is_broken(name: str) -> None:
    holds(RUNNING[name].look(Rules(), running=True), RUNNING[name])


@pytest.mark.parametrize("name", FRESH)
def test_a24_from_the_very_first_start_no_law_is_broken(name: str) -> None:
    holds(FRESH[name].look(Rules(), running=False), FRESH[name])


# ---------------------------------------------------------------- each rule is needed


@pytest.mark.parametrize(
    ("planted", "name", "law"),
    [
        ("no fence", "a lease lapses", "no effect of a lower epoch"),
        ("no rule for equal epochs", "the store is lost", "one leader an epoch"),
        ("not above what agents tell", "the store is lost", "at rest every agent obeys a leader"),
        ("an old session's queue", "an agent registers anew", "no effect of an old session"),
        ("decides before the answer", "a lease lapses", "nothing is decided before"),
        ("takes any report", "a lease lapses", "nothing is decided before"),
        ("two files are one", "two files", "one of two files' leaders is obeyed"),
    ],
)
def test_f21_a_planted_bug_is_found_by_a_short_story(planted: str, name: str, law: str) -> None:
    found = FRESH[name].look(PLANTED[planted], running=False)
    assert found.wrong.startswith(law), found.told
    assert len(found.trace) <= 15, found.told


def test_the_story_of_a_missing_fence_reads_like_one() -> None:
    told = FRESH["a lease lapses"].look(PLANTED["no fence"], running=False).told
    for line in (
        "A leads as L1, epoch 1",
        "A's lease lapses; it does not know",
        "B leads as L2, epoch 2",
        "n0 gets from A: start L1.1 (epoch 1)",
        "WRONG: no effect of a lower epoch: n0 obeys Start of L1, epoch 1, after it stored epoch 2",
    ):
        assert line in told


def test_without_the_law_about_decisions_two_engines_run() -> None:
    """What a late registration comes to: not only a rule of order is broken."""
    model = Model("etcd", PLANTED["takes any report"])
    model.fenced = False
    found = explore(model, model.start(1, Faults(lapses=1)))
    assert found.wrong == "one engine where one is wanted: L1.1 on n0, L2.1 on n0", found.told
