"""The catalog as a document for people and scripts (`llmgw catalog show -o json`): merged, and without secrets."""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.catalog import redact
from llmgw.core.types.catalog import Catalog, Model, Profile

SCHEMA = "llmgw.catalog/1"


def show(catalog: Catalog) -> dict[str, Any]:
    """Bytes and seconds as numbers; null is never, or a whole GPU."""
    return {
        "schema": SCHEMA,
        "digest": catalog.digest,
        "models": [_model(model) for model in catalog.models.values()],
        "circuits": dict(catalog.circuits),
        "stray_grace_s": catalog.stray_grace_s,
        "assembly_window_s": catalog.assembly_window_s,
        "keep_unknown": catalog.keep_unknown,
        "start_limit": catalog.start_limit,
    }


def _model(model: Model) -> dict[str, Any]:
    document = _plain(model)
    return {**document, "profiles": [_profile(profile) for profile in model.profiles]}


def _profile(profile: Profile) -> dict[str, Any]:
    """`fingerprint` is that of a node the weights do not name; `fingerprints` has one for each."""
    document = _plain(profile)
    shown = {key: list(redact.argv(tuple(document[key]))) for key in ARGV}
    return {
        **document,
        **shown,
        "env": redact.env(profile.env),
        "fingerprint": profile.fingerprint_on("default"),
    }


def _plain(value: Model | Profile) -> dict[str, Any]:
    """As JSON has it: lists, not tuples."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return document


ARGV = ("command", "worker_command", "leader_args", "worker_args")
