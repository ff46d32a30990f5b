"""A catalog that is taken back goes back at once: what still comes up by the other one holds nothing up (A66)."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.core.reconcile.decide import decide
from llmgw.core.reconcile.observe import observe
from llmgw.core.types.catalog import Model
from llmgw.core.types.messages import ShardReport
from llmgw.core.types.plan import (
    Action,
    DrainReplica,
    RollReplica,
    StartReplica,
    StopReplica,
    Wait,
)
from llmgw.core.types.state import CatalogLoaded, Failure, SessionLost, State
from tests.core.world import FP, GIB, at, catalog, gpus, model, node, profile, running, shard

NEW = "1:bbbb"
DRIFT = "profile main changed since it was started (1:bbbb -> 1:aaaa)"


def alpha(fingerprint: str = FP, **k: Any) -> Model:
    main = profile(gpus=1, gpu_memory_bytes=10 * GIB, fingerprints={"default": fingerprint})
    return model("alpha", main, low=1, **k)


def engine(name: str, fingerprint: str, **k: Any) -> ShardReport:
    port = 18000 + int(name[-1])
    return shard(f"{name}/0", gpus=("box1-0",), fingerprint=fingerprint, port=port, **k)


def picture(m: Model, *reports: ShardReport, size: float = 48) -> State:
    """The agent says first that it comes up, then what it says now: nobody has seen it serve."""
    return running(catalog(m), node("box1", *reports, gpus=gpus("box1", size)))


def ends(state: State) -> list[Action]:
    return [a for a in decide(state, 1.0).actions if not isinstance(a, StartReplica | Wait)]


@pytest.mark.parametrize(
    ("state", "kind"),
    [("pending", StopReplica), ("loading", StopReplica), ("starting", DrainReplica)],
)
def test_a66_beside_the_old_one_the_new_one_goes_and_the_old_is_not_touched(
    state: str, kind: type[Action]
) -> None:
    """One that is `starting` may have been found again a moment ago, and serve (F43): it is drained, not stopped."""
    m = alpha(scaling=alpha().scaling.__class__(min=1, max=2))
    reports = engine("alpha-1", FP), engine("alpha-2", NEW, state=state)
    (a,) = ends(picture(m, *reports))
    assert isinstance(a, kind)
    assert isinstance(a, StopReplica | DrainReplica)
    assert (a.replica, a.reason) == ("alpha-2", "drift")
    assert a.why == f"{DRIFT}; it is {state}, nobody is on it yet"


def test_a66_after_a_stop_first_roll_the_old_profile_gets_the_place_back_at_once() -> None:
    """Before, it waited until the one that cannot come up had been given up: five starts of a large model."""
    (a,) = ends(picture(alpha(), engine("alpha-2", NEW, state="loading"), size=12))
    assert isinstance(a, StopReplica)
    assert (
        decide(picture(alpha(), size=12), 1.0).actions[0].why.startswith("min 1, 0 running; fits")
    )


def test_a67_its_failures_are_the_other_catalogs_and_hold_nothing_up() -> None:
    failure = Failure("inc-x", "main", 0.0, "exited with code 1", gave_up=True, fingerprint=NEW)
    halted = at(picture(alpha(NEW), engine("alpha-1", FP)), failures={"alpha": (failure,)})
    assert "halted" in decide(halted, 1.0).actions[0].why
    back = observe(halted, CatalogLoaded(catalog(alpha())), 2.0)
    assert decide(back, 2.0).actions == ()


@pytest.mark.parametrize(
    ("m", "report"),
    [
        (alpha(on_change="keep"), engine("alpha-2", NEW, state="loading")),
        (alpha(), engine("alpha-2", FP, state="loading")),
        (alpha(), engine("alpha-2", "", state="loading")),  # A18: unknown is not different
        (alpha(), engine("alpha-2", NEW, state="loading", desired="stopped")),
    ],
)
def test_what_is_todays_or_may_be_or_ends_already_goes_on(m: Model, report: ShardReport) -> None:
    assert ends(picture(m, report)) == []


def test_what_has_served_is_rolled_and_not_thrown_away() -> None:
    state = picture(alpha(), engine("alpha-2", NEW))
    state = observe(state, SessionLost("box1"), 2.0)
    assert ends(state) == []
    loads = running(
        catalog(alpha()),
        node("box1", engine("alpha-2", NEW)),
    )
    assert not any(isinstance(a, StopReplica) for a in ends(loads))


@pytest.mark.parametrize("most", [2, 3])
def test_a66_what_it_gives_back_is_room_for_the_next_step_back(most: int) -> None:
    """Half way, with room for one more: an old one beside the newer, not the newer stopped first in the same pass."""
    m = alpha(scaling=alpha().scaling.__class__(min=2, max=most))
    reports = (
        engine("alpha-1", FP),
        engine("alpha-2", NEW),
        engine("alpha-3", NEW, state="loading"),
    )
    plan = decide(picture(m, *reports, size=32), 1.0)
    stop, wait = plan.actions
    assert isinstance(stop, StopReplica)
    assert stop.replica == "alpha-3"
    assert isinstance(wait, Wait)
    assert wait.why == "roll: alpha-3 on box1 is still on its way out"
    (step,) = decide(picture(m, *reports[:2], size=32), 1.0).actions
    assert isinstance(step, RollReplica)
    assert step.spots, "beside it"
