"""Settings of one command: flag > LLMGW_* environment > config file > default; and where things are by default.

Answers for: one order of precedence, and errors that name the place a value came from. It may not know what a setting
is for, nor import anything slow: `llmgw status` reads its address from here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from llmgw.errors import UsageError

CONTROL_LISTEN, GATEWAY_LISTEN, AGENT_LISTEN = "127.0.0.1:8801", "127.0.0.1:8800", "127.0.0.1:8802"
CONTROL_URL = f"http://{CONTROL_LISTEN}"
AGENT_URL = f"http://{AGENT_LISTEN}"
PIN_DIGITS = 64
SYSTEM_CATALOG = Path("/etc/llmgw/catalog.yaml")
SYSTEM_STATE = Path("/var/lib/llmgw")

File = Mapping[str, str | tuple[str, ...]]
#: How a control was reached last, in its state dir: for the command line of the same box.
URL_FILE = "url"
JOIN_FILE = "join.json"


class Trust(NamedTuple):
    """Whom to believe over TLS: `pins` are hashes of certificates, `ca` is a file of authorities; else the system's."""

    pins: tuple[str, ...] = ()
    ca: str = ""


class Address(NamedTuple):
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")

    @property
    def url(self) -> str:
        return f"http://{self}"

    @property
    def every(self) -> bool:
        return self.host in {"0.0.0.0", "::"}  # noqa: S104 - compared

    @property
    def near(self) -> Address:
        """How this box itself reaches it."""
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared
        return Address(near, self.port)

    # `override` would need typing_extensions, which `llmgw status` has no time for.
    def __str__(self) -> str:  # type: ignore[explicit-override]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Given:
    """What one command was given, and where. A flag that was not given is None, () or False."""

    def __init__(
        self,
        flags: Mapping[str, object],
        env: Mapping[str, str] = os.environ,
        file: File | None = None,
        path: Path | None = None,
    ) -> None:
        self._flags = flags
        self._env = env
        self._file = file or {}
        self._path = path

    def _lookup(self, key: str) -> tuple[Any, str]:
        if self.flag(key):
            return self._flags[key], f"--{key.replace('_', '-')}"
        name = f"LLMGW_{key.upper()}"
        if self._env.get(name, "").strip():
            return self._env[name].strip(), name
        if key in self._file:
            return self._file[key], f"{key} in {self._path}"
        return None, ""

    def beside(self, env: Mapping[str, str]) -> Given:
        """The same with this environment under the one that there is."""
        own = {name: value for name, value in self._env.items() if value.strip()}
        return Given(self._flags, {**env, **own}, self._file, self._path)

    def flag(self, key: str) -> bool:
        """Whether it was named on the command line itself."""
        return self._flags.get(key) not in (None, (), [], False)

    def text(self, key: str, default: str) -> str:
        value, where = self._lookup(key)
        if value is None:
            return default
        if not isinstance(value, str | Path):
            msg = f"{where}: wants one value, got {len(value)}"
            raise UsageError(msg, f"write {key}: VALUE")
        return str(value)

    def items(self, key: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """A flag repeats; in the environment the parts stand between commas."""
        value, _ = self._lookup(key)
        if value is None:
            return tuple(default)
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return tuple(map(str, value))

    def switch(self, key: str) -> bool:
        value, where = self._lookup(key)
        word = str(value).lower()
        if value is not None and word not in {"true", "1", "yes", "on", "false", "0", "no", "off"}:
            msg = f"{where}: {value!r} is neither true nor false"
            raise UsageError(msg, "write true or false")
        return word in {"true", "1", "yes", "on"}

    def number(self, key: str) -> float | None:
        value, where = self._lookup(key)
        if value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            msg = f"{where}: {value!r} is not a number"
            raise UsageError(msg, "digits only, no unit") from None

    def address(self, key: str, default: str) -> Address:
        _, where = self._lookup(key)
        return address(self.text(key, default), where or key)

    def pairs(self, key: str) -> dict[str, str]:
        """Repeated K=V; of one K twice the later counts."""
        _, where = self._lookup(key)
        found = {}
        for item in self.items(key):
            name, equals, value = item.partition("=")
            if not (name.strip() and equals):
                msg = f"{where}: {item!r} is not NAME=VALUE"
                raise UsageError(msg, f"write {where} NAME=VALUE, once for each")
            found[name.strip()] = value.strip()
        return found


def address(text: str, where: str) -> Address:
    """`HOST:PORT` of a listener; the host is never left out, so nothing is bound wider than written."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    url = "/" in host
    if url or not (host and colon and port.isdecimal() and int(port) < 1 << 16):
        msg = f"{where}: {text!r} is not HOST:PORT"
        raise UsageError(msg, "write it like 127.0.0.1:8801; a port is 1 to 65535")
    return Address(host, int(port))


def trust(given: Given, *urls: str, before: Trust = Trust()) -> Trust:  # noqa: B008 - immutable
    """`--pin` and `--ca`, else what is remembered. A pin for plain HTTP would be a promise that nobody keeps."""
    found = tuple(checked_pin(text) for text in given.items("pin", before.pins))
    for url in urls:
        if found:
            _kept(url)
    return Trust(found, given.text("ca", before.ca))


def checked_pin(text: str) -> str:
    kind, _, digits = text.strip().lower().partition(":")
    if kind != "sha256" or len(digits) != PIN_DIGITS or not set(digits) <= set("0123456789abcdef"):
        msg = f"--pin {text[:80]!r} is no hash of a certificate"
        raise UsageError(msg, "`llmgw token` on control's box prints it: sha256: and 64 hex digits")
    return f"{kind}:{digits}"


def _kept(url: str) -> None:
    host = url.partition("://")[2].partition("/")[0].rpartition(":")[0].strip("[]")
    if url.startswith("http://") and not Address(host, 0).loopback:
        msg = f"{url} is plain HTTP, and a certificate is pinned"
        raise UsageError(msg, f"write https://{url.removeprefix('http://')}, or leave --pin out")


def pinned(url: str, trust: Trust = Trust()) -> tuple[str, Trust]:  # noqa: B008 - immutable
    """`https://HOST:PORT#sha256:…` says in one word how a control is reached; what it names comes before all else."""
    plain, _, fragment = url.partition("#")
    if not fragment:
        return plain, trust
    _kept(plain)
    return plain, Trust((checked_pin(fragment),))


class Join(NamedTuple):
    """What an agent keeps of the control it joined, in its state dir: so that a restart needs no environment."""

    controls: tuple[str, ...] = ()
    trust: Trust = Trust()
    token: str = ""
    #: as `--address` was given, and which one that was
    address: str = ""
    last_address: str = ""
    #: what else was given at the join, by the flags' names; nothing in a file that an earlier version wrote
    words: Mapping[str, str] = {}

    def of(self, urls: Sequence[str]) -> Join:
        """It holds for its own controls only: nobody else is shown its token."""
        return self if set(urls) <= set(self.controls) else Join()


def joined(folder: Path) -> Join:
    import json  # noqa: PLC0415 - as above

    try:
        found = json.loads((folder / JOIN_FILE).read_bytes())
        trust = Trust(tuple(map(str, found["pins"])), str(found["ca"]))
        controls = tuple(map(str, found["controls"]))
        token, address, last = (str(found[key]) for key in ("token", "address", "last_address"))
        words = {str(flag): str(word) for flag, word in found.get("words", {}).items()}
        return Join(controls, trust, token, address, last, words)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Join()


def reached(folder: Path) -> str:
    """How the control (or agent) of this folder was reached last, as `pinned` takes it; "" where nobody knows."""
    try:
        return (folder / URL_FILE).read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def agent_url() -> str:
    return reached(state_dir("agent")) or AGENT_URL


def state_dir(part: str, env: Mapping[str, str] = os.environ) -> Path:
    """Where `control` or `agent` keeps what must outlive it."""
    if env.get("LLMGW_STATE_DIR"):
        return Path(env["LLMGW_STATE_DIR"]) / part
    if os.geteuid() == 0:
        return SYSTEM_STATE / part
    base = Path(env.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "llmgw" / part


def catalog_path() -> Path:
    return SYSTEM_CATALOG if SYSTEM_CATALOG.exists() else Path("catalog.yaml")


def inventory_path(env: Mapping[str, str] = os.environ) -> Path:
    """Control's; its tokens, and how it was reached last, are beside it."""
    return Path(
        env.get("LLMGW_INVENTORY", "").strip() or state_dir("control", env) / "inventory.db"
    )


def token(name: str, *files: Path, env: Mapping[str, str] = os.environ) -> str:
    """A secret: from the environment, else from the first file that is there; never from argv (`ps` shows it)."""
    if env.get(name, "").strip():
        return env[name].strip()
    for file in files:
        try:
            return file.read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as e:
            msg = f"cannot read the token in {file}: {e.strerror}"
            raise UsageError(msg, f"run as the user that owns it, or set {name}") from e
    return ""


def read_file(path: Path, known: Sequence[str]) -> File:
    """A config file: the flags' names as keys. Every problem at once, with its place and the nearest key."""
    import yaml  # noqa: PLC0415 - only who has a config file pays for it

    try:
        root = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except OSError as e:
        msg = f"cannot read the config file {path}: {(e.strerror or str(e)).lower()}"
        raise UsageError(msg, "name another one: --config FILE") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        mark = getattr(e, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        msg = f"{place}: not YAML: {getattr(e, 'problem', None) or e}"
        raise UsageError(msg, "keys are the flags' names: `node: box1`") from e
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        msg = f"{path}: wants `key: value` lines"
        raise UsageError(msg, f"keys are {', '.join(known)}")
    found: dict[str, str | tuple[str, ...]] = {}
    problems = []
    for key_node, node in root.value:
        key = str(key_node.value).replace("-", "_")
        at = f"{path}:{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}"
            problems.append(f'{at}: unknown key "{key}" - {hint}')
        elif key in found:
            problems.append(f'{at}: "{key}" is there twice - keep one')
        else:
            found[key] = _plain(node)
    if problems:
        raise UsageError("\n".join(problems), f"the keys are the flags of the command: {path}")
    return found


def _plain(node: Any) -> str | tuple[str, ...]:
    """Scalars as written, lists of them, and mappings as NAME=VALUE."""
    if isinstance(node.value, str):
        return node.value
    if node.id == "mapping":
        return tuple(f"{k.value}={_joined(v)}" for k, v in node.value)
    return tuple(_joined(item) for item in node.value)


def _joined(node: Any) -> str:
    value = _plain(node)
    return value if isinstance(value, str) else ",".join(value)
