"""What the catalog claims of what was started, in the judge's own words (A14-A16), and not from the core's answer."""

from __future__ import annotations

from llmgw.core.types.catalog import Catalog, Model, Profile
from llmgw.core.types.messages import Start

Claim = tuple[Model, Profile]


def claim(catalog: Catalog, start: Start, node: str, artefact: str) -> Claim | None:
    """The model by name or alias, the profile by name or fingerprint; of an alias only with the same artefact."""
    model = catalog.resolve(start.model)
    if model is None:
        return None
    like = (p for p in model.profiles if start.fingerprint in p.fingerprints.values())
    profile = model.profile(start.profile) or next(like, None)
    if profile is None:
        return None
    today = profile.weights_on(node)
    if model.name != start.model and artefact and today and artefact != today:
        return None
    return model, profile
