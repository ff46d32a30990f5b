"""The model that a multipart form names (RFC 7578), found in place: a file of 64 MiB is neither copied nor decoded.

Answers for: one reading of a form that no engine reads differently, else a refusal. It may not keep what is in it.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from llmgw.gateway.openai import ProblemError

#: RFC 2046 5.1.1: up to 70 of these; a token needs no quotes.
_BOUNDARY = re.compile(
    rb"""multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\\]{1,70})"|([^\s";,]{1,70}))\s*(?:;|$)""",
    re.IGNORECASE,
)
#: One parameter of a header, anchored: what stands inside quotes is no parameter (RFC 9110 5.6.6).
_PARAMETER = re.compile(rb"""\s*;\s*([\w*-]+)=("[^"\\]*"|[^\s;"]+)""")
_DISPOSITION, _FORM_DATA = b"content-disposition:", b"form-data"
#: Lines of one part's head, and parts of a form: more than any client sends.
HEAD_BYTES, PARTS_MAX, MODEL_BYTES = 2048, 1000, 1024


class Form(NamedTuple):
    """`start`, `end`: where in the body the model's name stands."""

    model: str
    stream: bool
    start: int
    end: int


def asked(body: bytes, content_type: bytes) -> Form:
    """`ProblemError` where it is no form, or does not name one model."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        said = content_type[:100].decode(errors="replace") or "nothing"
        _refuse(f"it is sent as {said}", "send multipart/form-data with its boundary")
    model: tuple[int, int] | None = None
    stream = b""
    for name, start, end in _parts(body, b"--" + (found[1] or found[2])):
        if name == b"model":
            if model is not None:
                _refuse("it has two fields `model`", "send one")
            model = (start, end)
        elif name == b"stream":
            stream = body[start : min(end, start + 8)]
    if model is None or not 0 < model[1] - model[0] <= MODEL_BYTES:
        _refuse("it has no field `model`", "name one of GET /v1/models in a field of the form")
    try:
        text = body[model[0] : model[1]].decode()
    except UnicodeDecodeError:
        _refuse("its `model` is no text", "name one of GET /v1/models")
    return Form(text, stream.strip().lower() == b"true", *model)


def _parts(body: bytes, delimiter: bytes) -> list[tuple[bytes, int, int]]:
    """Each field's name, and where its value begins and ends."""
    line = b"\r\n" + delimiter
    at = 0 if body.startswith(delimiter) else body.find(line) + 2
    if at == 1:
        _refuse(
            "it does not begin with its boundary", "send the boundary that stands before each part"
        )
    out: list[tuple[bytes, int, int]] = []
    while True:
        at += len(delimiter)
        if body.startswith(b"--", at):
            return out
        head = body.find(b"\r\n", at)
        if head < 0 or body[at:head].strip(b" \t"):
            _refuse("what follows a boundary is no line end", "end each with CRLF")
        start = body.find(b"\r\n\r\n", head, head + HEAD_BYTES)
        end = body.find(line, start + 2)
        if start < 0 or end < 0:
            _refuse("a part of it has no end", "end the form with its boundary and two dashes")
        out.append((_name(body[head + 2 : start]), start + 4, max(end, start + 4)))
        if len(out) > PARTS_MAX:
            _refuse(f"it has more than {PARTS_MAX} parts", "send fewer")
        at = end + 2


def _name(head: bytes) -> bytes:
    """The field's name, out of the one line that gives it; a part that could be read in two ways is refused."""
    lines = [
        line for line in head.split(b"\r\n") if line[: len(_DISPOSITION)].lower() == _DISPOSITION
    ]
    if len(lines) != 1:
        _refuse(f"a part of it has {len(lines)} content-disposition lines", "give each part one")
    value = lines[0][len(_DISPOSITION) :].lstrip()
    if value[: len(_FORM_DATA)].lower() != _FORM_DATA:
        _refuse("a part of it is no form-data", "name each part as form-data")
    at, names = len(_FORM_DATA), list[bytes]()
    while at < len(value.rstrip()):
        found = _PARAMETER.match(value, at)
        if found is None:
            _refuse("a part's name cannot be read", "quote it, without backslashes")
        if found[1].lower() == b"name":
            names.append(found[2].strip(b'"'))
        at = found.end()
    if len(names) != 1:
        _refuse(f"a part of it has {len(names)} names", "give each part one")
    return names[0]


def _refuse(why: str, hint: str) -> NoReturn:
    message = f"the form is refused: {why}"
    raise ProblemError(400, "invalid_body", message, hint, param="model")
