"""Node tokens: named words of which each belongs to the one node that joined with it (contract/http.md).

Answers for: kept in STATE_DIR/node-token (0600), read again whenever that file is another, so that every control of
this box goes by what `llmgw token` wrote; the leader's taken over by controls of other hosts; and no node registers as
another one. May not know HTTP. The words themselves are kept, not hashes: control shows an agent that agent's own token
when it asks for a log.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import secrets
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from llmgw.core.names import unknown
from llmgw.core.supervise.claims import NAME
from llmgw.core.types.messages import NodeReport
from llmgw.errors import LlmgwError, UsageError

FILE = "node-token"
WHAT, LIST = "node token", "`llmgw token list` shows them"
PREFIX = "llmgw-node-"
TOKENS_MAX = 1000
#: Of the one word of LLMGW_NODE_TOKEN, or of a file with nothing else in it: all nodes may have it.
SHARED = "shared"
#: Of the agent that `llmgw up` starts beside its control.
UP = "up"
#: The operators', or everybody where none is asked for: belongs to no node.
ANYONE = "*"
_NUMBERED = re.compile(r"node-([0-9]{1,6})")

T = TypeVar("T")


class NodeToken(Struct, frozen=True, kw_only=True):
    """`node_id` "": no node has joined with it yet. `shared`: it is bound to none, ever."""

    name: str
    token: str
    node_id: str = ""
    node: str = ""
    shared: bool = False


class Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/tokens`. `name` None: by number. `new`: not one that nobody has used yet."""

    name: str | None = None
    new: bool = False


class _File(Struct, frozen=True):
    tokens: tuple[NodeToken, ...] = ()


Tokens = dict[str, NodeToken]


# ---------------------------------------------------------------- values


def added(tokens: Tokens, name: str | None, *, new: bool = False) -> tuple[Tokens, NodeToken]:
    """The tokens with one for the next node."""
    free = next((t for t in tokens.values() if not (t.shared or t.node_id)), None)
    if name is None and free is not None and not new:
        return tokens, free
    if name is None:
        taken = [int(m[1]) for n in tokens if (m := _NUMBERED.fullmatch(n))]
        name = f"node-{max(taken, default=0) + 1}"
    if not NAME.fullmatch(name) or name in {SHARED, UP}:
        msg = f"{name[:80]!r} is no name for a node token"
        raise UsageError(msg, "letters, digits, dot, dash and underscore, e.g. box2")
    if name in tokens:
        msg = f"there is a node token called {name} already"
        hint = f"`llmgw token revoke {name}` first, or take another name"
        raise LlmgwError(msg, hint, code="duplicate_token", status=409)
    if len(tokens) >= TOKENS_MAX:
        msg = f"there are {len(tokens)} node tokens, and {TOKENS_MAX} is the limit"
        raise LlmgwError(msg, "revoke some: `llmgw token list`", code="too_many_tokens", status=409)
    made = _new(name)
    return tokens | {name: made}, made


def for_up(tokens: Tokens, word: str, node_id: str) -> tuple[Tokens, NodeToken]:
    """The tokens with one for the agent that has `word` and this identity: its node's own, else what it has, else new.

    The one that `up` made before is nobody else's: its node was set up anew, or an operator revoked it.
    """
    bound = (t for t in tokens.values() if node_id and t.node_id == node_id)
    had = (t for t in tokens.values() if t.token == word and (t.shared or not t.node_id))
    found = next(chain(bound, had), None)
    if found is not None:
        return tokens, found
    made = _new(UP)
    return {n: t for n, t in tokens.items() if n != UP} | {UP: made}, made


def _new(name: str) -> NodeToken:
    return NodeToken(name=name, token=PREFIX + secrets.token_urlsafe(32))  # 256 bits


def without(tokens: Tokens, name: str) -> Tokens:
    if name not in tokens:
        raise unknown(WHAT, name, list(tokens), LIST)
    return {n: t for n, t in tokens.items() if n != name}


def claimed(tokens: Tokens, used: str, report: NodeReport) -> Tokens:
    """The tokens with this one bound to the node that registers; 409 where the node or the token is another's."""
    mine = tokens.get(used)
    mine = None if mine is None or mine.shared else mine
    if mine is not None and mine.node_id not in {"", report.node_id}:
        msg = (
            f"node {report.node} refused: its token {used} belongs to {mine.node}, "
            f"with node id {mine.node_id[:8]}, and this one has {report.node_id[:8] or 'none'}"
        )
        raise _not_yours(msg, f"`llmgw token` makes one for {report.node}; each node has its own")
    for other in tokens.values():
        if other is mine or not other.node_id:
            continue
        if other.node_id == report.node_id or other.node == report.node:
            what = "node id" if other.node_id == report.node_id else "name"
            msg = (
                f"node {report.node} refused: its {what} belongs to {other.node}, which joined with "
                f"the token {other.name}, and it came with {used or 'a shared one'}"
            )
            raise _not_yours(
                msg, f"if it is that box, set up anew: `llmgw token revoke {other.name}` first"
            )
    if mine is None or (mine.node_id, mine.node) == (report.node_id, report.node):
        return tokens
    return tokens | {used: replace(mine, node_id=report.node_id, node=report.node)}


def _not_yours(msg: str, hint: str) -> LlmgwError:
    return LlmgwError(msg, hint, code="not_your_token", status=409)


def shown(tokens: Tokens) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "node": t.node or None, "node_id": t.node_id or None, "shared": t.shared}
        for t in tokens.values()
    ]


# ---------------------------------------------------------------- the file


def parsed(text: bytes) -> Tokens:
    """One word alone is the shared token of everybody, as people write it there by hand."""
    text = text.strip()
    if not text.startswith(b"{"):
        word = text.decode()
        return {SHARED: NodeToken(name=SHARED, token=word, shared=True)} if word else {}
    return {t.name: t for t in msgspec.json.decode(text, type=_File).tokens}


def shared(folder: Path) -> str:
    """The one that all nodes may have, "" where there is none."""
    return next((t.token for t in NodeTokens(folder).now().values() if t.shared), "")


class NodeTokens:
    """Those of one state dir."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._seen: tuple[int, int, int] | None = None
        self._tokens: Tokens = {}
        #: where nodes of other boxes find this control, each with its pin; () while it listens on loopback
        self.urls: tuple[str, ...] = ()
        #: where an agent of this box does
        self.near = ""

    @property
    def present(self) -> bool:
        """There is such a file: with the last token revoked it still says that one is needed."""
        return bool(self.now()) or self._seen is not None

    def now(self) -> Tokens:
        """A stat a call. Unreadable, those known before stay: nobody is let in for it, nor shut out."""
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            if (
                self._seen is not None
            ):  # else what was adopted, and could not be written, would be gone
                self._seen, self._tokens = None, {}
            return self._tokens
        except OSError as e:
            raise self._unreadable(e) from e
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen != self._seen:
            try:
                self._tokens = parsed(self.path.read_bytes())
            except (OSError, ValueError, msgspec.MsgspecError) as e:
                if self._seen is None:
                    raise self._unreadable(e) from e
                return self._tokens
            self._seen = seen
        return self._tokens

    def _unreadable(self, e: Exception) -> LlmgwError:
        msg = f"the node tokens in {self.path} cannot be read: {getattr(e, 'strerror', None) or e}"
        return UsageError(msg, "run as the user that owns it, or remove it and make new ones")

    def known(self, given: str) -> str:
        """The name of a token, "" for none of these. All are compared, so that time does not tell which was near."""
        found = [t.name for t in self.now().values() if _same(t.token, given)]
        return found[0] if found else ""

    def of(self, node_id: str) -> str:
        """The token that this node's agent has, and takes when it is asked; "" where it joined with a shared one."""
        return next((t.token for t in self.now().values() if t.node_id == node_id), "")

    def own(self) -> tuple[NodeToken, ...] | None:
        """What controls of other hosts are told: without the word that was written here by hand, a setting of ours.

        None: nobody knows. Asked in each pass, which an unreadable file must not end.
        """
        try:
            return tuple(t for t in self.now().values() if not t.shared)
        except LlmgwError:
            return None

    def adopt(self, leaders: Iterable[NodeToken]) -> str:
        """The leader's instead of ours, revoked ones included; what came and went by it, "" for nothing."""

        def change(there: Tokens) -> tuple[Tokens, str]:
            ours = {n: t for n, t in there.items() if t.shared}
            after = ours | {t.name: t for t in leaders if not t.shared}
            news = [f"{name} comes" for name in after if name not in there]
            news += [f"{name} goes" for name in there if name not in after]
            news += [f"{n} is another" for n in after if n in there and after[n] != there[n]]
            return (after, ", ".join(news)) if after != there else (there, "")

        try:
            return self.edit(change)
        except LlmgwError as e:
            self._tokens, news = change(self._tokens)  # it may lead next, and the fleet must get in
            return news and f"{news}; over a restart they are lost: {e.message}"

    def claim(self, used: str, report: NodeReport) -> None:
        """Before a node is let in: written down first (design.md law 8), and only where it is news."""
        tokens = self.now()
        if used != ANYONE and claimed(tokens, used, report) is not tokens:
            self.edit(lambda there: (claimed(there, used, report), None))

    def edit(self, change: Callable[[Tokens], tuple[Tokens, T]]) -> T:
        """Read, change, write, with nobody in between; on disk before it returns."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                before = self.now()
                after, said = change(before)
                if after is not before:
                    self._write(after)
        except OSError as e:
            msg = f"the node tokens in {self.path} cannot be written: {e.strerror or e}"
            raise LlmgwError(msg, "run as the user that owns it; is the disk full?") from e
        return said

    def _write(self, tokens: Tokens) -> None:
        aside = self.path.with_suffix(".new")
        aside.unlink(missing_ok=True)  # left by one that was killed
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(_File(tuple(tokens.values()))) + b"\n")
            file.flush()
            os.fsync(fd)
        aside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
