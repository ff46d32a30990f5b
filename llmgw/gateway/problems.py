"""What a client is told when its request cannot be served: one function per case, each with the numbers.

Answers for: the status, the closed code, the sentence and what to try. It may not decide that there is a problem.
"""

from __future__ import annotations

from llmgw.core import helps
from llmgw.gateway.balance import FAILED, LOADED, Target
from llmgw.gateway.elsewhere import ELSEWHERE
from llmgw.gateway.openai import ProblemError
from llmgw.gateway.queue import share

#: What holds the room of a model that fits nowhere is here to stay, or a person has to act.
NO_ROOM_RETRY_S = 30


def no_route_table() -> ProblemError:
    return ProblemError(
        503,
        "no_route_table",
        "no route table yet: no control has answered since this gateway was first started",
        "is `llmgw control` running, and reachable from here?",
        retry_after_s=2,
    )


#: status -> code, what to try, seconds after which
REFUSED = {
    408: ("request_timeout", "send a request in one go", None),
    413: (
        "body_too_large",
        "send less at a time, or files by their URL where the engine takes one",
        None,
    ),
    431: ("headers_too_large", "send fewer or shorter headers, or a shorter URL", None),
    503: ("bodies_too_large", "ask again in a moment", 1),
}


def refused(status: int, message: str) -> ProblemError:
    """A request that is not read to its end."""
    code, hint, retry_after_s = REFUSED.get(status, ("bad_request", "", None))
    return ProblemError(status, code, message, hint, retry_after_s=retry_after_s)


def not_allowed(target: Target) -> ProblemError:
    message = f"this API key may not use model {target.name!r}"
    return ProblemError(403, "model_not_allowed", message, param="model")


def queue_full(target: Target) -> ProblemError:
    return ProblemError(
        429,
        "queue_full",
        f"{len(target.waiting)} requests wait for model {target.name!r} already",
        f"at most {target.room} may: raise requests.queue or scaling.max in the catalog",
        retry_after_s=5,
    )


def share_used(target: Target, held: int) -> ProblemError:
    return ProblemError(
        429,
        "queue_share_used",
        f"{held} requests of this client wait for model {target.name!r} already",
        f"one client may hold {share(target.room)} of {target.room} places, the rest is kept for others: "
        "raise requests.queue or scaling.max in the catalog, or send fewer at a time",
        retry_after_s=5,
    )


def failed(target: Target) -> ProblemError:
    if target.route.no_room:
        return _no_room(target, target.route.no_room)
    if target.route.status == ELSEWHERE:
        return ProblemError(
            503,
            "engine_elsewhere",
            f"model {target.name!r} cannot be reached from this gateway: {target.route.why}",
            "ask the gateway there; `llmgw stop` of it lets the next one listen on its box's address",
            retry_after_s=NO_ROOM_RETRY_S,
            detail={"stage": ELSEWHERE},
        )
    return ProblemError(
        503,
        "model_failed",
        f"model {target.name!r} failed: {target.route.why or 'control does not say why'}",
        helps.ready(target.name, "failed", target.route.why),
        detail={"stage": FAILED},
    )


def _no_room(target: Target, why: str) -> ProblemError:
    """A file that is not there is no matter of room, and no engine that is stopped would help."""
    absent = helps.absent(why)
    if absent:
        message = f"model {target.name!r} cannot start: {absent}"
        hint = f"put it there, then `llmgw clear {target.name}`"
    else:
        message = f"there is no room for model {target.name!r}: {why}"
        hint = helps.ready(target.name, "no_room", why)
    return ProblemError(
        503,
        "model_no_room",
        message,
        hint or "no engine that may be stopped would make room",
        retry_after_s=NO_ROOM_RETRY_S,
        detail={"stage": "waiting"},
    )


def unreachable(target: Target, why: str, waited_s: float) -> ProblemError:
    message = f"model {target.name!r} could not be reached for {waited_s:.0f} s: {why}"
    hint = "its engine is gone or its node is away; `llmgw status` says more"
    return ProblemError(503, "engine_unreachable", message, hint, retry_after_s=5)


def waited_too_long(target: Target, stage: str, waited_s: float, now: float) -> ProblemError:
    route, eta = target.route, target.eta_s(now)
    if target.unsure and not target.ready:
        return _cut_off(target, stage, waited_s, now)
    if target.ready:
        message = (
            f"all {target.ready} replicas of model {target.name!r} were busy for {waited_s:.0f} s"
        )
    else:
        message = f"model {target.name!r} is still {route.status} after {waited_s:.0f} s"
    message += f": {route.why}" if route.why else ""
    detail = {
        "stage": stage if route.status == LOADED else route.status,
        "progress": route.progress,
        "eta_s": eta,
        "waited_s": int(waited_s),
    }
    hint = "ask again, it goes on; wait_timeout in the catalog is the limit"
    if not target.ready and route.status != "loading":
        state = "waiting" if route.status == "unloaded" else route.status
        hint = helps.ready(target.name, state, route.why)
    retry = int(min(max(eta or 0, 5), 60))
    return ProblemError(503, "model_not_ready", message, hint, retry_after_s=retry, detail=detail)


def _cut_off(target: Target, stage: str, waited_s: float, now: float) -> ProblemError:
    """Its replicas may sleep by now: control waits for no gateway that it has not heard for a minute."""
    unsure = target.unsure
    names = ", ".join(e.replica for e in unsure)
    message = (
        f"model {target.name!r} was not asked in {waited_s:.0f} s: {names} may have been put to sleep, as no control "
        f"that leads has answered this gateway for {unsure[0].word.silent_s(now):.0f} s"
    )
    hint = "is `llmgw control` running, and reachable from this gateway?"
    detail = {"stage": stage, "progress": None, "eta_s": None, "waited_s": int(waited_s)}
    return ProblemError(503, "model_not_ready", message, hint, retry_after_s=5, detail=detail)


def engine_failed(target: Target, replica: str, why: str) -> ProblemError:
    message = f"the engine of model {target.name!r} ({replica}) {why}"
    return ProblemError(502, "engine_failed", message, "`llmgw status` says what became of it")


def engine_refused(target: Target, status: int, body: bytes) -> ProblemError:
    """What an engine said instead of a stream, for the event that has to carry it."""
    said = body.decode(errors="replace").strip()[:2000]
    message = f"the engine of model {target.name!r} answered {status} instead of a stream: {said}"
    return ProblemError(max(status, 400), "engine_refused", message)
