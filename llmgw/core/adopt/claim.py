"""What the catalog says of a group of shards: which model and profile it belongs to, or why nothing will ever claim it.

By name, by alias, by fingerprint (A14-A20). Looks at one group and one catalog, never at other groups.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from llmgw.core.types.catalog import FINGERPRINT_PREFIX, Catalog, Model, Profile
from llmgw.core.types.state import Shard


class Claim(Struct, frozen=True):
    """What the catalog says of a group. `reason` is set when nothing will ever claim it."""

    profile: Profile | None
    why: str
    #: canonical, of the model (A14) and of the profile
    name: str = ""
    profile_name: str = ""
    reason: str | None = None

    @property
    def owner(self) -> Profile | None:
        """The profile it is claimed under."""
        return self.profile if self.reason is None else None


class Claims:
    """One catalog's answers for one pass. Fleets have many shards and few profiles: those alike are one question."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._alone: dict[tuple[str, str, str, str], tuple[Claim, str]] = {}

    def of(self, shards: list[Shard]) -> Claim:
        return claimed(self._catalog, shards)

    def of_one(self, shard: Shard) -> tuple[Claim, str]:
        """Whose a shard is that has no others, and its drift."""
        report = shard.report
        alike = (report.model, report.profile, report.fingerprint, report.artefact)
        known = self._alone.get(alike)
        if known is None:
            claim = self.of([shard])
            known = claim, drift_of(claim.owner, (shard,))
            if claim.profile is None or not claim.profile.by_node:
                self._alone[alike] = known
        return known


def wanted_shards(profile: Profile | None, shards: Iterable[Shard]) -> int:
    """What the engines were started with, else the catalog's nodes; never the number reported (A20)."""
    for shard in shards:
        if shard.report.world_size:
            return shard.report.world_size
    return max(profile.nodes if profile else 1, 1)


def claimed(catalog: Catalog, shards: list[Shard]) -> Claim:
    """The model and profile a group belongs to, by name, alias or fingerprint (A14-A16)."""
    name, profile_name, fingerprint = _told(shards)
    name = name or _named_after(shards)
    model = catalog.resolve(name) if name else None
    if model is None:
        why = f"model {name or '?'} is not in the catalog"
        return Claim(None, why, reason="model_removed")
    profile = model.profile(profile_name) or _by_fingerprint(model, fingerprint)
    if profile is None and not profile_name:
        profile = model.profiles[0]
    if profile is None:
        why = f"model {model.name} has no profile {profile_name}, nor one like it"
        return Claim(None, why, model.name, reason="profile_removed")
    if name != model.name:
        lead = shards[0]
        today = profile.weights_on(lead.node)
        ran = lead.report.artefact
        if ran and today and "${" not in today and ran != today:
            why = f"{name} is an alias of {model.name} today, which runs {today}, not {ran}"
            return Claim(profile, why, model.name, profile.name, "artefact_mismatch")
    said = f"matches {profile.name}"
    if profile_name and profile_name != profile.name:
        said = f"was {profile_name}, has the fingerprint of {profile.name}"
    if name != model.name:
        said += f", {name} is {model.name} today"
    return Claim(profile, said, model.name, profile.name)


def _told(shards: list[Shard]) -> tuple[str, str, str]:
    """Model, profile and fingerprint, each by the first that says it."""
    model = profile = fingerprint = ""
    for s in shards:
        report = s.report
        model, profile = model or report.model, profile or report.profile
        fingerprint = fingerprint or report.fingerprint
    return model, profile, fingerprint


def _named_after(shards: list[Shard]) -> str:
    """The model in a replica's own name, where an unreadable record tells no more: unreadable is not absent (A39)."""
    return shards[0].report.replica.rpartition("-")[0]


def _by_fingerprint(model: Model, fingerprint: str) -> Profile | None:
    if not fingerprint.startswith(FINGERPRINT_PREFIX):
        return None
    return next((p for p in model.profiles if fingerprint in p.fingerprints.values()), None)


def drift_of(profile: Profile | None, shards: Iterable[Shard]) -> str:
    """How what runs differs from today's profile, or "". Unknown is neither equal nor different (A18)."""
    if profile is None:
        return ""
    for s in shards:
        ran, today = s.report.fingerprint, profile.fingerprint_on(s.node)
        known = ran.startswith(FINGERPRINT_PREFIX) and today.startswith(FINGERPRINT_PREFIX)
        if known and ran != today:
            return (
                f"profile {profile.name} changed since it was started ({ran[:10]} -> {today[:10]})"
            )
    return ""
