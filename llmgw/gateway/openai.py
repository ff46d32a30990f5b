"""What OpenAI's and Anthropic's clients expect: paths, the model a body names, the model list, error shapes.

Answers for: every word that a client reads from the gateway itself. It may not know sockets or the clock.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from llmgw.core.types.routes import RouteModel, RouteTable
from llmgw.errors import LlmgwError

JSON = b"content-type: application/json\r\n"
EVENTS = b"text/event-stream"
OPENAI, ANTHROPIC, RESPONSES = "openai", "anthropic", "responses"


class Api(msgspec.Struct, frozen=True):
    """`streams`: an answer may be a stream of events, so that a waiting client can be told so.

    `form`: the body is a multipart form; `raw`: an engine's own API; `socket`: a WebSocket is what it answers;
    `repeats`: may be asked again after a failure.
    """

    dialect: str = OPENAI
    streams: bool = False
    form: bool = False
    raw: bool = False
    socket: bool = False
    repeats: bool = True


APIS = {
    b"/v1/chat/completions": Api(streams=True),
    b"/v1/completions": Api(streams=True),
    b"/v1/embeddings": Api(),
    b"/v1/rerank": Api(),
    b"/rerank": Api(),
    b"/v1/responses": Api(RESPONSES, streams=True),
    b"/v1/messages": Api(ANTHROPIC, streams=True),
    b"/v1/messages/count_tokens": Api(ANTHROPIC),
    b"/v1/audio/speech": Api(),
    b"/v1/audio/transcriptions": Api(form=True, streams=True),
    b"/v1/audio/translations": Api(form=True),
    b"/v1/images/generations": Api(),
    b"/v1/images/edits": Api(form=True, streams=True),
}


#: A path that is served has its own; of what is refused before that, only the shape of the error matters.
NO_API = Api()


def of(path: bytes) -> Api:
    """In whose words an error of this path is told."""
    anthropic = path.startswith(b"/v1/messages/")
    return APIS.get(path) or (APIS[b"/v1/messages"] if anthropic else NO_API)


class ProblemError(LlmgwError):
    """An answer that says no: `detail` goes into the body, `retry_after_s` and `headers` into the head."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str = "",
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        detail: dict[str, Any] | None = None,
        headers: bytes = b"",
    ) -> None:
        super().__init__(message, hint, code=code, status=status)
        self.param = param
        self.retry_after_s = retry_after_s
        self.detail = detail or {}
        self.headers = headers


#: status -> (OpenAI's type, Anthropic's type)
TYPES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("invalid_request_error", "authentication_error"),
    403: ("invalid_request_error", "permission_error"),
    404: ("invalid_request_error", "not_found_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    503: ("server_error", "overloaded_error"),
}


def error_document(problem: ProblemError, dialect: str, request_id: str) -> dict[str, Any]:
    client_error = problem.status < 500  # noqa: PLR2004 - HTTP's own line
    openai, anthropic = TYPES.get(
        problem.status, TYPES[400] if client_error else ("server_error", "api_error")
    )
    facts = {
        "message": problem.message,
        "code": problem.code,
        "hint": problem.hint,
        **problem.detail,
    }
    if dialect == ANTHROPIC:
        return {"type": "error", "error": {"type": anthropic, **facts}, "request_id": request_id}
    return {"error": {"type": openai, "param": problem.param, **facts}}


def error_body(problem: ProblemError, dialect: str, request_id: str) -> bytes:
    return msgspec.json.encode(error_document(problem, dialect, request_id))


def error_event(problem: ProblemError, dialect: str, request_id: str) -> bytes:
    """The error as an event that ends a stream; the empty lines end what an engine may have left open."""
    document = error_document(problem, dialect, request_id)
    if dialect == OPENAI:
        return b"\n\ndata: %b\n\n" % msgspec.json.encode(document)
    if dialect == RESPONSES:
        document = {**document["error"], "type": "error"}
    return b"\n\nevent: error\ndata: %b\n\n" % msgspec.json.encode(document)


#: Half a pair of surrogates. A text that was cut inside an emoji has it, JavaScript and Python send it, and engines
#: in Python take it; `msgspec` does not. Its backslash comes first, so that `re` passes quickly over the rest; behind
#: another one it is text.
_half = re.compile(
    rb"\\u[dD](?<!\\\\u[dD])(?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
#: More of them are no accident, and would hold everybody up.
HALVES_MAX = 1000


def mended(body: bytes) -> bytes | None:
    """The same body with U+FFFD for each half of a pair; None where it has none, or too many."""
    found, count = _half.subn(rb"\\ufffd", body, HALVES_MAX)
    return found if 0 < count < HALVES_MAX else None


class Asked(msgspec.Struct):
    """All that is read of a body."""

    model: str
    stream: Any = False


_asked = msgspec.json.Decoder(Asked).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def asked(body: bytes) -> Asked:
    """The model a body names, and whether it wants a stream; `ProblemError` where it does not say."""
    try:
        found = _asked(body)
    except RecursionError as e:
        raise ProblemError(400, "invalid_body", "the body is nested too deeply") from e
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        whole = mended(body)
        if whole is not None:  # only to be read: the body goes on as it is
            return asked(whole)
        param = "model" if "model" in str(e) else None
        hint = 'send JSON with "model": one of GET /v1/models'
        raise ProblemError(
            400, "invalid_body", f"the body is refused: {e}", hint, param=param
        ) from e
    if not found.model:
        raise ProblemError(
            400, "invalid_body", "the body is refused: `model` is empty", param="model"
        )
    return found


def packed(coding: str) -> ProblemError:
    """RFC 9110 15.5.16."""
    message = f"the body is sent as {coding[:100]!r}, and bodies are not unpacked here"
    hint = "send it without Content-Encoding"
    headers = b"accept-encoding: identity\r\n"
    return ProblemError(415, "body_encoded", message, hint, headers=headers)


class _Prompt(msgspec.Struct):
    system: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


_prompt = msgspec.json.Decoder(_Prompt).decode


def prompt(body: bytes, size: int) -> bytes:
    """The first bytes of what a body asks, as sent: an engine that has seen them still has them in its cache."""
    try:
        found = _prompt(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        whole = mended(body)
        return b"" if whole is None else prompt(whole, size)
    return b"".join((found.system, found.messages, found.prompt, found.input))[:size]


def renamed(body: bytes, model: str) -> bytes:
    """The same body for an engine that knows the model by another name; all other values as they were sent.

    `ProblemError` where that cannot be: all names in it are read here, and only the values of two before.
    """
    try:
        fields = _fields(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        whole = mended(body)
        if whole is None:
            raise ProblemError(400, "invalid_body", f"the body is refused: {e}") from e
        return renamed(whole, model)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


class Names:
    """Which model answers to a name: its own name, then an exact alias, then a glob (A14)."""

    def __init__(self, table: RouteTable) -> None:
        self.exact: dict[str, str] = {}
        self.globs: list[tuple[str, str]] = []
        for name, route in table.models.items():
            for alias in route.aliases:
                if "*" in alias:
                    self.globs.append((alias, name))
                else:
                    self.exact.setdefault(alias, name)
        self.exact.update({name: name for name in table.models})

    def resolve(self, name: str) -> str | None:
        found = self.exact.get(name)
        if found is not None:
            return found
        return next((model for glob, model in self.globs if fnmatchcase(name, glob)), None)

    def unknown(self, name: str, visible: list[str]) -> ProblemError:
        near = get_close_matches(name[:100], visible, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "GET /v1/models lists what there is"
        return ProblemError(
            404, "model_not_found", f"model {name[:100]!r} does not exist", hint, param="model"
        )


def model_document(name: str, route: RouteModel) -> dict[str, Any]:
    """`created` is a constant: nobody records a time, and a client may cache by it."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "llmgw",
        "context_length": route.context,
        "max_model_len": route.context,
        "meta": {"kind": route.kind},
        "aliases": route.aliases,
        "status": {"value": route.status, "progress": route.progress, "why": route.why},
    }


def model_list(models: list[tuple[str, RouteModel]]) -> bytes:
    data = [model_document(name, route) for name, route in models if route.listed]
    return msgspec.json.encode({"object": "list", "data": data})
