"""What a reload changes, one sentence each, classed by what it takes: nothing, the next start, a restart.

The words are for the log and for `catalog apply`; nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, Literal

from msgspec import Struct

from llmgw.catalog import redact
from llmgw.catalog.document import ARGV
from llmgw.catalog.units import duration_text, size_text
from llmgw.core.types.catalog import Catalog, Model, Profile
from llmgw.core.types.sleep import Doors

Effect = Literal["live", "next start", "restart", "added", "removed"]

#: What the fingerprint covers: a difference here restarts, unless only a built-in template moved.
_PROCESS = frozenset(
    (*ARGV, "engine", "launcher", "image", "mounts", "env", "weights", "nodes", "gpus")
)
_LIVE = frozenset({"weight", "drain_timeout_s"})
_TOLD_APART = frozenset({"name", "profiles", "fingerprints", "models", "digest", "template_env"})


class Change(Struct, frozen=True, kw_only=True):
    """`model` and `profile` are "" where the change is not about one."""

    effect: Effect
    what: str
    model: str = ""
    profile: str = ""

    @property
    def sentence(self) -> str:
        about = "/".join(part for part in (self.model, self.profile) if part)
        said = self.what.partition(":")[0] == self.effect
        what = self.what if said else f"{self.what} ({self.effect})"
        return f"{about}: {what}" if about else what


def diff(old: Catalog, new: Catalog) -> list[Change]:
    """Everything that `new` says otherwise, models in the order of `old`, then what is new."""
    changes = [Change(effect="live", what=what) for _, what in _differences(old, new)]
    for name, model in old.models.items():
        other = new.models.get(name)
        changes += [_removed(name, new)] if other is None else _model(model, other)
    for name in new.models:
        if name not in old.models:
            changes.append(Change(effect="added", model=name, what="added"))
    return changes


def _removed(name: str, new: Catalog) -> Change:
    heir = new.resolve(name)
    if heir is not None and name in heir.aliases:
        return Change(
            effect="removed",
            model=name,
            what=f"now an alias of {heir.name}, which takes its engines over",
        )
    return Change(effect="removed", model=name, what="removed: its engines will be stopped")


def _model(old: Model, new: Model) -> Iterator[Change]:
    for _, what in _differences(old, new):
        yield Change(effect="live", model=new.name, what=what)
    before = {profile.name: profile for profile in old.profiles}
    after = {profile.name: profile for profile in new.profiles}
    for name, profile in before.items():
        if name in after:
            yield from _profile(new.name, profile, after[name])
        else:
            yield _profile_removed(
                new.name, profile, [p for p in new.profiles if p.name not in before]
            )
    for name in after:
        if name not in before:
            yield Change(effect="added", model=new.name, profile=name, what="added")
    common = [name for name in before if name in after]
    order = [name for name in after if name in before]
    if order != common:
        yield Change(
            effect="live", model=new.name, what=f"profiles: now in the order {', '.join(after)}"
        )


def _profile_removed(model: str, old: Profile, added: list[Profile]) -> Change:
    """A renamed profile with the same fingerprint keeps its engines (A16)."""
    heir = next((profile.name for profile in added if profile.fingerprints == old.fingerprints), "")
    if heir:
        return Change(effect="live", model=model, profile=old.name, what=f"renamed to {heir}")
    return Change(
        effect="removed", model=model, profile=old.name, what="removed: its engines will be stopped"
    )


def _profile(model: str, old: Profile, new: Profile) -> Iterator[Change]:
    drift = old.fingerprints != new.fingerprints
    told = False
    for key, what in _differences(old, new):
        restarts = drift and key in _PROCESS
        told = told or restarts
        effect: Effect = "restart" if restarts else "live" if key in _LIVE else "next start"
        yield Change(effect=effect, model=model, profile=new.name, what=what)
    if drift and not told:
        what = f"fingerprint: {old.fingerprint_on('default')} -> {new.fingerprint_on('default')}"
        yield Change(effect="restart", model=model, profile=new.name, what=what)


def _differences(old: Struct, new: Struct, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key of `old`, sentence) for every field that differs, nested ones by their whole path."""
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after or (name in _TOLD_APART):
            continue
        if isinstance(before, Struct) and isinstance(after, Struct):
            for _, what in _differences(before, after, f"{name}."):
                yield name, what
        elif name in ARGV:
            yield name, _argv(name, before, after)
        elif isinstance(before, dict):
            for what in _map(prefix + name, before, after):
                yield name, what
        else:
            label = prefix + name.removesuffix("_s").removesuffix("_bytes")
            yield name, f"{label}: {_text(name, before)} -> {_text(name, after)}"


def _argv(label: str, old: tuple[str, ...], new: tuple[str, ...]) -> str:
    """`args: -c 32768 -> 65536`: what was exchanged, with the flag before it."""
    pieces = []
    shown_old, shown_new = redact.argv(old), redact.argv(new)
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        before, after = " ".join(shown_old[i:j]), " ".join(shown_new[k:m])
        flag = f"{shown_old[i - 1]} " if i and old[i - 1].startswith("-") else ""
        if tag == "replace":
            pieces.append(f"{flag}{before} -> {after}")
        elif tag == "delete":
            pieces.append(f"without {before}")
        elif tag == "insert":
            pieces.append(f"with {after}")
    same_program = bool(old and new) and old[0] == new[0]
    return f"{'args' if label == 'command' and same_program else label}: {', '.join(pieces)}"


def _map(label: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    shown_old, shown_new = (redact.env(old), redact.env(new)) if label == "env" else (old, new)
    for key in sorted({*old, *new}):
        if old.get(key) == new.get(key):
            continue
        if key not in new:
            yield f"{label}.{key}: without {shown_old[key]}"
        elif key not in old:
            yield f"{label}.{key}: with {shown_new[key]}"
        else:
            yield f"{label}.{key}: {shown_old[key]} -> {shown_new[key]}"


def _text(key: str, value: Any) -> str:
    if key.endswith("_s"):
        return duration_text(value)
    if key.endswith("_bytes"):
        return "whole GPU" if value is None else size_text(value)
    if isinstance(value, Doors):
        return f"level {value.level}"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "unset" if value in (None, "") else str(value)
