"""The clock, and control as this node reaches it: does it answer, does it take our token, is its time ours.

May not register, nor ask for anything that changes a thing: the question with the token names no session.
"""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import parsedate_to_datetime

from llmgw.agent.doctor.look import Answer, Check, Node

UNAUTHORISED = 401
#: `Date` has whole seconds, and the answer takes its time; copies of one replica are ranked by when they started (A38).
SKEW_S = 5.0


def peers(node: Node) -> Iterator[Check]:
    yield _clock(node)
    for url in node.controls:
        before = node.time_s()
        answer = node.ask(url, "/healthz")
        after = node.time_s()
        if not answer.status:
            fact = f"{url} does not answer: {answer.error}"
            yield Check(
                "fail",
                "control",
                fact,
                answer.hint or "start control, name it with --control, or look at a firewall",
            )
            continue
        yield Check("ok", "control", f"{url} answers within {(after - before) * 1000:.0f} ms")
        yield from _skew(url, answer, (before + after) / 2)
        yield _token(node, url)
    yield from _remembered(node)


def _remembered(node: Node) -> Iterator[Check]:
    """Status and this would speak of two controls, and one of them is no more."""
    for said in node.remembered:
        url = said.partition("#")[0]
        if url not in node.controls and not node.ask(said, "/healthz").status:
            fact = (
                f"llmgw on this box asks {url}, as control here was reached last ({node.memory}), and it does not "
                f"answer; the agent's is {', '.join(node.controls)}"
            )
            hint = "start it; where no control runs here any more remove that file, or set LLMGW_CONTROL"
            yield Check("warn", "control", fact, hint)


def _clock(node: Node) -> Check:
    wrong = node.unsynchronised()
    if wrong is None:
        return Check("skip", "clock", "the kernel does not say whether the clock is synchronised")
    if wrong:
        fact = "the kernel's clock is not synchronised (adjtimex)"
        return Check("warn", "clock", fact, "timedatectl set-ntp true, or run chrony or ntpd")
    return Check("ok", "clock", "synchronised (adjtimex)")


def _skew(url: str, answer: Answer, here_s: float) -> Iterator[Check]:
    try:
        there_s = parsedate_to_datetime(answer.date).timestamp() + 0.5
    except (TypeError, ValueError):
        return
    skew_s = here_s - there_s
    if abs(skew_s) > SKEW_S:
        fact = f"this clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} {url}'s"
        yield Check(
            "warn", "clock", fact, "synchronise both: ages, logs and which copy is older go by it"
        )


def _token(node: Node, url: str) -> Check:
    """The path of agents without a session: refused for the token first, for the session else (contract/http.md)."""
    answer = node.ask(url, "/agent/v1/commands?session=doctor&after=0")
    if answer.status == UNAUTHORISED:
        said = (
            "the node token is wrong" if node.token else "a node token is needed and there is none"
        )
        hint = "LLMGW_NODE_TOKEN, or node-token in the state dir: the one that control has"
        return Check("fail", "token", f"{url}: {said}", hint)
    if not answer.status:
        return Check(
            "warn", "token", f"{url} does not answer: {answer.error}", answer.hint or "try again"
        )
    return Check(
        "ok", "token", f"{url} takes {'the node token' if node.token else 'us without a token'}"
    )
