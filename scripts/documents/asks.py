"""Bodies of requests to the API as JSON Schema, with what is refused in them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
#: null is as good as not said.
FLAG: Json = {"type": ["boolean", "null"]}
NO: Json = {"enum": [False, None]}
TEXT: Json = {"type": "string"}
DIGEST: Json = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
NAME: Json = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"}
RANK: Json = {"type": "integer", "minimum": 0}
#: Of something that is there; a name of blanks alone is none.
NAMED: Json = {"type": "string", "pattern": "[!-~]"}
LIMIT: Json = {"type": "number", "minimum": 1, "maximum": 1_000_000}


def mapping(*required: str, example: Json | None = None, **properties: Json) -> Json:
    found: Json = {"type": "object", "properties": properties}
    if required:
        found["required"] = [*required]
    return found | ({"examples": [example]} if example is not None else {})


SURVEY = mapping(allow_partial=FLAG)
TAKE = mapping(
    "node", "pid", "as", node=NAMED, pid={"type": "integer"}, dry_run=FLAG, **{"as": NAMED},
    example={"node": "box2", "pid": 4242, "as": "qwen/gpu", "dry_run": True},
)  # fmt: skip
SURVEY_OR_TAKE: Json = {
    "anyOf": [SURVEY | {"not": {"required": ["pid"]}}, TAKE],
    "description": "With a pid: take over an engine that was started by hand.",
}
PAUSE = mapping(why={"type": ["string", "null"]}, example={"why": "moving the rack"})
CONFIRM = mapping("digest", digest=DIGEST)
WAKE = mapping(dry_run=FLAG, example={"dry_run": True})
STOP_MODEL = mapping(force=NO)
STOP: Json = {
    "anyOf": [
        mapping(rank=RANK | {"type": ["integer", "null"]}, force=NO),
        mapping("rank", "force", rank=RANK, force={"const": True}),
    ],
    "description": "Requests in flight finish first; force releases what of one shard cannot be killed.",
}
PLACE = mapping(
    gpu={"type": ["string", "integer", "null"], "minLength": 1, "description": "Index or UUID; without it the node."},
    example={"gpu": 1},
)  # fmt: skip
#: `confirm` is a yes to the plan of that digest.
SHOWN: Json = {"digest": DIGEST, "confirm": FLAG}
UNCONFIRMED: Json = {
    "digest": {"type": ["string", "null"], "pattern": f"{DIGEST['pattern']}|^$"},
    "confirm": NO,
}
RELOAD: Json = {"anyOf": [mapping("digest", **SHOWN), mapping(**UNCONFIRMED)]}
PUT: Json = {
    "anyOf": [
        mapping("catalog", "digest", catalog=TEXT, **SHOWN),
        mapping("catalog", catalog=TEXT, **UNCONFIRMED),
    ],
    "examples": [{"catalog": "version: 1\nmodels: {}\n"}],
}
PLAN = mapping(
    catalog={"anyOf": [TEXT, {"type": "object", "additionalProperties": TEXT}]},
    example={"catalog": {"catalog.yaml": "version: 1\nmodels: {}\n"}},
)
KEY = mapping(
    "name",
    name=NAME,
    models={"type": ["array", "null"], "items": TEXT, "minItems": 1},
    limits=mapping(in_flight=LIMIT, per_minute=LIMIT) | {"additionalProperties": False},
    rights={"type": "array", "items": {"enum": ["upstream"]}},
    example={"name": "kids", "models": ["small-*"], "limits": {"in_flight": 1}},
) | {"additionalProperties": False}
REVOKE = mapping(
    last={"type": "boolean", "description": "It is meant, though no other is left."}, example={}
)
STANDBY = mapping(
    "name", name=TEXT, url=TEXT, version=TEXT, catalog=TEXT, nodes={"type": "array", "items": TEXT}
)
TOKEN = mapping(
    name={"anyOf": [NAME, {"type": "null"}]}, new={"type": "boolean"}, example={"name": "box2"}
) | {"additionalProperties": False}
