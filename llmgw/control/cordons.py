"""`llmgw drain NODE[/GPU]` and `undrain`: which place is meant, and the operator's word kept before he is answered.

Answers for: what has to leave and how far that is, in words. It may not move or end anything: the word is a fact in the
picture, the core finds out what follows.
"""

from __future__ import annotations

from typing import Any

from llmgw.control.given import whole
from llmgw.control.loop import Control
from llmgw.control.verbs import at, kept, leading, unknown
from llmgw.core import cordon
from llmgw.core.helps import SHOWN
from llmgw.core.names import instead, nearest, plain
from llmgw.core.types.state import Cordoned, Node, Shard
from llmgw.errors import LlmgwError, UsageError

Json = dict[str, Any]


async def drain(control: Control, name: str, gpu: str = "") -> Json:
    """From here on nothing of ours starts there, and what is there leaves; over restarts too, until `undrain`."""

    def fold(now: float) -> cordon.Place:
        leading(control)
        place = _place(control, name, gpu)
        if place not in control.state.cordoned:
            said = f"since {at(control)} by the operator"
            where = _words(control, place)
            control.story.tell(
                "drain", f"{where} is drained {said}", level="warning", node=name, gpu=place[1]
            )
            control.fold(Cordoned(*place, said), now)
        return place

    said: Json = await control.ask(fold, lambda place: _answer(control, place))
    return said | kept(control)


async def undrain(control: Control, name: str, gpu: str = "") -> Json:
    """`was`: since when it was drained, null where it was not. GPUs drained on their own stay so, and are named.

    `leaves`: what had begun to leave, which is stopped all the same.
    """

    def fold(now: float) -> Json:
        leading(control)
        place = _place(control, name, gpu)
        was = control.state.cordoned.get(place, "")
        where = _words(control, place)
        if was:
            control.story.tell(
                "undrain", f"{where} may be used again; it had been drained {was}", node=name
            )
            control.fold(Cordoned(*place, "", at(control)), now)
        going = [s for s in cordon.leaving(control.state, place) if was]
        left = [_words(control, p) for p in sorted(control.state.cordoned) if p[0] == name]
        return {"node": name, "gpu": place[1] or None, "where": where, "was": was or None} | {
            "still": left,
            "leaves": [_ends(control, s) for s in going],
        }

    said: Json = await control.ask(fold)
    return said | kept(control)


def _place(control: Control, name: str, gpu: str) -> cordon.Place:
    """The node, and the UUID of the GPU that is called so; a GPU that is gone may still be undrained by its UUID."""
    node = control.state.nodes.get(name)
    if node is None:
        unknown("node", name, sorted(control.state.nodes))
    if not gpu or (name, gpu) in control.state.cordoned:
        return name, gpu
    number = gpu.lower().removeprefix("gpu")
    for g in node.report.gpus or ():
        if g.uuid.lower() == gpu.lower() or str(g.index) == number:
            return name, g.uuid
    raise _no_gpu(node, name, gpu)


def _no_gpu(node: Node, name: str, gpu: str) -> LlmgwError:
    there = sorted(node.report.gpus or (), key=lambda g: g.index)
    known = [f"{name}/{g.index} ({g.uuid})" for g in there]
    near = nearest(gpu, [g.uuid for g in there])
    hint = instead(f"{name}/{near}" if near else "", known, SHOWN)
    return LlmgwError(f"node {name} has no GPU {plain(gpu)}", hint, code="not_found", status=404)


def _words(control: Control, place: cordon.Place) -> str:
    name, gpu = place
    return f"GPU {cordon.index(control.state.nodes.get(name), gpu)} of {name}" if gpu else name


def _answer(control: Control, place: cordon.Place) -> Json:
    """`leaves`: what is there still, each with what becomes of it after this pass."""
    name, gpu = place
    node = control.state.nodes[name]
    about = {"node": name, "gpu": gpu or None, "where": _words(control, place)}
    rows = [_row(control, node, s) for s in cordon.left(node, gpu)]
    return about | {"drained": control.state.cordoned[place], "leaves": rows}


def _ends(control: Control, shard: Shard) -> Json:
    """A drain that has begun is not undone; one that is drained by another word as well starts nowhere here."""
    model = control.state.catalog.resolve(shard.report.model)
    anew = ""
    if model is not None:
        when = "it is asked for" if model.on_demand else "there is room for it"
        anew = f"; a new one starts when {when}"
    about = {"shard": shard.report.shard, "node": shard.node, "pid": shard.report.pid}
    about |= {"model": shard.report.model}
    return about | {"what": f"it is still stopped once its requests are done{anew}"}


def _row(control: Control, node: Node, shard: Shard) -> Json:
    report = shard.report
    about = {"shard": report.shard, "node": shard.node, "pid": report.pid, "model": report.model}
    return about | {"what": _what(control, node, shard)}


def _what(control: Control, node: Node, shard: Shard) -> str:
    if node.too_old:
        return f"its agent is too old to be told, upgrade llmgw on {shard.node}"
    if not node.connected:
        return f"{shard.node} does not answer, it leaves when that is back"
    if control.state.settling:
        return "it begins to leave when settling is over"
    begun = control.state.draining.get(shard.incarnation)
    if begun is not None:
        return f"requests in flight finish, then it is stopped: {begun.why}"
    waits = (a for a in control.plan.actions if a.model == shard.report.model)
    return next((a.why for a in waits), "it stays until another is ready")


def gpu_given(given: Json) -> str:
    """Of a request's body: an index or a name."""
    gpu = whole(given, "gpu")
    if gpu is None:
        return ""
    if isinstance(gpu, bool) or not isinstance(gpu, int | str) or gpu == "":
        msg = "gpu is neither an index nor a UUID"
        raise UsageError(msg, 'leave it out to mean the whole node: {} or {"gpu": 1}')
    return str(gpu)
