"""Who may ask for what: the model that a request means, if its client may use it.

Answers for: every no before a replica is looked for, in the order that tells least to strangers. It may not know
sockets or the clock.
"""

from __future__ import annotations

from zlib import crc32

from llmgw.gateway import openai, outgoing, problems, raw
from llmgw.gateway.answer import Client
from llmgw.gateway.balance import Target
from llmgw.gateway.http1 import Request
from llmgw.gateway.keys import Use, allowed
from llmgw.gateway.openai import Api
from llmgw.gateway.outgoing import Asked
from llmgw.gateway.state import Gateway


def admit(
    gateway: Gateway, request: Request, api: Api, use: Use | None, client: Client
) -> tuple[Target, Asked]:
    """`ProblemError` where it is a no."""
    key = use.key if use is not None else None
    if gateway.fleet.table is None:
        raise problems.no_route_table()
    if api.raw:
        raw.check(use, loopback=client.loopback)
    asked = outgoing.asked(request, api)
    target = gateway.fleet.targets.get(asked.model) or gateway.resolve(asked.model)
    if target is None:
        visible = [n for n in gateway.names.exact if allowed(key, n)]
        raise gateway.names.unknown(asked.model, visible)
    if use is not None and not use.allows(target.name):
        raise problems.not_allowed(target)
    return target, asked


def prefix(target: Target, request: Request, api: Api) -> int | None:
    """What a prompt begins with, as a number, where those that begin alike are to meet."""
    size = target.route.sticky_prefix_bytes
    if size is None or api.raw or api.socket or api.form:
        return None
    return crc32(openai.prompt(request.body, size))
