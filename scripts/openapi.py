"""Writes the OpenAPI document that control serves at /openapi.json (OpenAPI 3.1).

Answers for: llmgw/control/openapi.json. Which calls there are comes from control's own table; what they ask and answer
from scripts/documents. What agents and gateways say to control is listed only: it is between parts of llmgw.

    python -m scripts.openapi [--check]
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from llmgw import __version__
from llmgw.control.api import Api
from llmgw.control.guard import OPEN
from scripts.documents import answers, asks, others, plan, status
from scripts.generated import ROOT, settle

FILE = ROOT / "llmgw" / "control" / "openapi.json"
SCHEMAS = "#/components/schemas/"
Json = dict[str, Any]
#: Whoever stands between, and every call that is refused before it is read.
ALWAYS = (401, 403)
SAYS = {
    400: "The words are off; the hint says how to put it right.",
    401: "No token, or the wrong one.",
    403: "Refused by where it comes from: Host, Origin, or a body that is not JSON.",
    404: "There is none of that name; the hint has the nearest.",
    409: "Not as things are now.",
    503: "Control cannot do that now: it does not lead, or a node does not answer.",
}


class Call(Struct, frozen=True, kw_only=True):
    """`answers` are the structs of a 200; `text` is its media type where that is not JSON."""

    answers: tuple[type[Struct], ...] = ()
    text: str = ""
    lines: type[Struct] | None = None
    asks: Json | None = None
    needs_body: bool = False
    query: tuple[Json, ...] = ()
    fails: tuple[int, ...] = ()


def asked(name: str, schema: Json, about: str) -> Json:
    return {"name": name, "in": "query", "description": about, "schema": schema}


NUMBER: Json = {"type": "integer", "minimum": -(10**18) + 1, "maximum": 10**18 - 1}
YES: Json = {"enum": ["0", "1", "false", "true"]}
PARTIAL = asked("allow_partial", YES, "Judge without the nodes that do not answer.")
FOLLOW = asked("follow", YES, "Stream what comes, too.")
WORD = (400, 503)
NAMED = (400, 404, 503)
CALLS = {
    "GET /api/v1/status": Call(
        answers=(status.Status,),
        query=(asked("places", {"type": "string"}, "Of this model: where another replica could go."),),
    ),
    "GET /api/v1/plan": Call(
        answers=(plan.Plan,),
        query=(asked("catalog", {"type": "string"}, "A file beside the catalog in use."), PARTIAL),
        fails=(400,),
    ),
    "POST /api/v1/plan": Call(answers=(plan.Plan,), asks=asks.PLAN, query=(PARTIAL,), fails=(400,), needs_body=True),
    "POST /api/v1/adopt": Call(
        answers=(plan.Plan, plan.Takeover), asks=asks.SURVEY_OR_TAKE, fails=(400, 404, 409, 503)
    ),
    "GET /api/v1/events": Call(
        answers=(others.Events,), lines=answers.Event, fails=(400,),
        query=(asked("after", NUMBER, "The id of the last one that is known."), FOLLOW),
    ),
    "GET /api/v1/logs/{name}/{rank}": Call(
        text="text/plain", fails=(400, 404, 503),
        query=(
            FOLLOW, asked("previous", YES, "Of the attempt before."),
            asked("tail", NUMBER | {"minimum": 0}, "Bytes of its end."),
        ),
    ),
    "GET /api/v1/leader": Call(answers=(answers.Leads,)),
    "POST /api/v1/standbys": Call(
        answers=(answers.HeardStandby,), asks=asks.STANDBY, needs_body=True, fails=WORD
    ),
    "GET /api/v1/catalog": Call(answers=(answers.CatalogShown,)),
    "POST /api/v1/catalog": Call(answers=(answers.CatalogUsed,), asks=asks.RELOAD, fails=(400, 409, 503)),
    "PUT /api/v1/catalog": Call(
        answers=(answers.CatalogUsed,), asks=asks.PUT, fails=(400, 409, 503), needs_body=True
    ),
    "POST /api/v1/pause": Call(answers=(answers.Paused,), asks=asks.PAUSE, fails=WORD),
    "POST /api/v1/resume": Call(answers=(answers.Resumed,), fails=(503,)),
    "POST /api/v1/confirm": Call(
        answers=(answers.Confirmed,), asks=asks.CONFIRM, needs_body=True, fails=(400, 409, 503)
    ),
    "POST /api/v1/models/{name}/wake": Call(answers=(plan.Wake,), asks=asks.WAKE, fails=NAMED),
    "POST /api/v1/models/{name}/stop": Call(answers=(answers.Stopped,), asks=asks.STOP_MODEL, fails=NAMED),
    "POST /api/v1/replicas/{name}/stop": Call(
        answers=(answers.Stopped, answers.Forced), asks=asks.STOP, fails=(*NAMED, 409)
    ),
    "POST /api/v1/replicas/{name}/clear": Call(answers=(answers.Cleared,), fails=NAMED),
    "POST /api/v1/nodes/{name}/drain": Call(answers=(answers.Drained,), asks=asks.PLACE, fails=NAMED),
    "POST /api/v1/nodes/{name}/undrain": Call(answers=(answers.Undrained,), asks=asks.PLACE, fails=NAMED),
    "POST /api/v1/nodes/{name}/forget": Call(answers=(answers.Forgotten,), fails=(*NAMED, 409)),
    "GET /api/v1/keys": Call(answers=(answers.KeyList,)),
    "POST /api/v1/keys": Call(answers=(answers.KeyMade,), asks=asks.KEY, fails=(400, 409, 503), needs_body=True),
    "POST /api/v1/keys/{name}/revoke": Call(
        answers=(answers.KeyRevoked,), asks=asks.REVOKE, needs_body=True, fails=(*NAMED, 409)
    ),
    "GET /api/v1/tokens": Call(answers=(answers.TokenList,)),
    "POST /api/v1/tokens": Call(answers=(answers.TokenMade,), asks=asks.TOKEN, fails=(400, 409, 503), needs_body=True),
    "POST /api/v1/tokens/{name}/revoke": Call(answers=(answers.TokenRevoked,), fails=NAMED),
    "POST /api/v1/end": Call(answers=(answers.Ending,), fails=(503,)),
    "POST /api/v1/shutdown": Call(answers=(answers.Over,)),
    "GET /healthz": Call(answers=(answers.Healthy,)),
    "GET /readyz": Call(answers=(answers.Ready,)),
    "GET /metrics": Call(text="text/plain"),
    "GET /openapi.json": Call(answers=(), text="application/json"),
    "GET /": Call(text="text/html"),
    "GET /web/page.css": Call(text="text/css"),
    "GET /web/page.js": Call(text="text/javascript"),
}  # fmt: skip
INNER = ("/agent/v1/", "/gateway/v1/")
INFO: Json = {
    "title": "llmgw control",
    "version": __version__,
    "license": {"name": "MIT", "identifier": "MIT"},
    "description": "Names in paths are percent-encoded, a slash in them too. Without LLMGW_TOKEN, on loopback only, no "
    "token is asked for. Unknown fields are ignored both ways: changes are additive.",
}


def document(*, strict: bool = False) -> Json:
    """`strict`: a field that is not declared is an error; for tests, as the shipped one allows further fields."""
    paths: Json = {}
    for method, path, _, what in Api.__new__(Api).table():
        inner = path.startswith(INNER)
        call = Call(text="application/json") if inner else CALLS[f"{method} {path}"]
        paths.setdefault(path, {})[method.lower()] = operation(method, path, what, call, inner)
    return {
        "openapi": "3.1.0",
        "info": INFO,
        "servers": [{"url": "http://127.0.0.1:8801"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {str(s): refused(text) for s, text in SAYS.items()},
            "schemas": schemas(strict=strict),
        },
    }


def operation(method: str, path: str, what: str, call: Call, inner: bool) -> Json:  # noqa: FBT001
    words = re.findall(r"[a-z]+", path.replace("/v1", ""))
    found: Json = {
        "operationId": "_".join([method.lower(), *words]),
        "summary": what,
        "tags": ["parts" if inner else "operators" if path.startswith("/api/") else "everybody"],
    }
    if parameters := [*map(in_path, re.findall(r"{(\w+)}", path)), *call.query]:
        found["parameters"] = parameters
    if call.asks is not None:
        found["requestBody"] = {
            "required": call.needs_body, "content": {"application/json": {"schema": call.asks}}
        }  # fmt: skip
    found["responses"] = {"200": {"description": what, "content": content(call)}}
    if path == "/readyz":
        found["responses"]["503"] = {"description": "Not yet.", "content": content(call)}
    if path in OPEN:
        found["security"] = []
    always = (403,) if path in OPEN else ALWAYS
    for code in sorted({*always, *call.fails}):
        found["responses"][str(code)] = {"$ref": f"#/components/responses/{code}"}
    return found


def in_path(name: str) -> Json:
    number: Json = {"type": "integer", "minimum": 0, "maximum": 9999}
    schema: Json = number if name == "rank" else asks.NAMED
    return {"name": name, "in": "path", "required": True, "schema": schema}


def content(call: Call) -> Json:
    refs = [{"$ref": SCHEMAS + a.__name__} for a in call.answers]
    lines: Json = {}
    if call.lines is not None:
        about = f"Lines, each a {call.lines.__name__} of components/schemas."
        lines = {"application/x-ndjson": {"schema": {"type": "string", "description": about}}}
    if not refs:
        schema: Json = {"type": "object"} if call.text == "application/json" else {"type": "string"}
        return {call.text: {"schema": schema}}
    return {"application/json": {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}} | lines


def refused(text: str) -> Json:
    schema = {"$ref": SCHEMAS + answers.Failure.__name__}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def schemas(*, strict: bool) -> Json:
    """Parts carry the name of their document before their own: two of them may have a part of one name."""
    found: Json = {}
    every: dict[type[Struct], None] = {answers.Failure: None}
    for call in CALLS.values():
        every |= dict.fromkeys((*call.answers, *((call.lines,) if call.lines else ())))
    for of in every:
        whole = of.__name__
        _, parts = msgspec.json.schema_components((of,), ref_template="{name}")
        for name, part in parts.items():
            tidy(part, whole, strict=strict)
            found[full(name, whole)] = part
        if (said := getattr(of, "SCHEMA", None)) is not None:
            found[whole]["properties"]["schema"] = {"const": said}
    return dict(sorted(found.items()))


def full(name: str, whole: str) -> str:
    return whole if name == whole else f"{whole}.{name}"


def tidy(part: Any, whole: str, *, strict: bool) -> None:
    if isinstance(part, list):
        for one in part:
            tidy(one, whole, strict=strict)
    if not isinstance(part, dict):
        return
    if part.get("additionalProperties") is False and not strict:
        del part["additionalProperties"]
    if part.get("description") == "" or "\n\n" in str(part.get("description", "")):
        del part["description"]
    if isinstance(ref := part.get("$ref"), str):
        part["$ref"] = SCHEMAS + full(ref, whole)
    for value in part.values():
        tidy(value, whole, strict=strict)


def files() -> dict[Path, str]:
    return {FILE: json.dumps(document(), indent=1, ensure_ascii=False) + "\n"}


if __name__ == "__main__":
    sys.exit(settle(files(), sys.argv[1:]))
