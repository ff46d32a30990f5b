"""The conversion itself: top-level keys, then each model. May not write YAML nor words for a terminal."""

from __future__ import annotations

import re
from typing import Any

from llmgw.catalog.engines import built_in, with_program
from llmgw.catalog.llama_swap.command import Command, taken_apart
from llmgw.catalog.llama_swap.dialects import LLAMA, Dialect
from llmgw.catalog.llama_swap.found import Found, Notes
from llmgw.catalog.llama_swap.macros import Macros

Json = dict[str, Any]
_BAD = re.compile(r"[^A-Za-z0-9._-]+")
_STARTS_AT_ONCE = "min: 1 keeps it running; take it out for a model that may go when idle"
#: Keys of the file without a counterpart -> why, or what takes their place.
_FILE = {
    "logLevel": "llmgw logs decisions and engines' own logs apart: `llmgw logs REPLICA`",
    "logTimeFormat": "times are ISO 8601",
    "logToStdout": "engines' logs are files, with rotation",
    "logRequests": "the gateway's access log is on, without prompts",
    "store": "counters are at /metrics for Prometheus; nothing about a request is stored",
    "metricsMaxInMemory": "counters are at /metrics for Prometheus",
    "captureBuffer": "prompts and answers are never stored",
    "ui": "the page at control's address, and `llmgw status`",
    "performance": "GPUs and memory are in `llmgw status` and at /metrics",
    "startPort": "ports are the agent's: llmgw agent --ports FIRST-LAST",
    "sendLoadingState": "always on for streams, as comments that no client takes for text",
    "includeAliasesInList": "aliases are listed with their model",
    "upstream": "/upstream/MODEL/… takes every path, and needs a key's right beyond loopback",
    "profiles": "an alias in the catalog, then `llmgw catalog apply`, moves a name at run time",
    "selectors": "one model with several profiles: the first that fits runs, `weight` shares the traffic",
    "peers": "a box of one's own gets `llmgw agent`; servers of others are not routed to",
}
#: Keys of a model without a counterpart.
_MODEL = {
    "name": "/v1/models shows the model's own name",
    "description": "/v1/models shows no description",
    "metadata": "/v1/models has a fixed shape",
    "filters": "bodies go through as they are; set sampling defaults in the engine's arguments",
    "useModelName": "llmgw starts the engine under the model's own name",
    "sendLoadingState": "always on for streams",
    "timeouts": "the gateway's own: a silent engine is found by its probe",
    "compat": "a WebSocket wakes its model and keeps it awake while it is open",
    "proxy": "llmgw gives each engine a port of its own; the command must listen on ${port}",
    "cmdStop": "llmgw ends the process, or the container, by itself: TERM, a grace, KILL",
}


def converted(given: Json, lines: dict[str, int]) -> Found:
    """`given`: the file as plain data; `lines`: where each dotted key stands."""
    notes = Notes(lines)
    catalog: Json = {"version": 1, "defaults": {}, "engines": {}, "models": {}}
    settings = {"globalTTL": given.get("globalTTL", 0), "unloadTimeout": given.get("unloadTimeout")}
    for key, value in given.items():
        if key != "models":
            _top(catalog, notes, key, value)
            continue
        for name, model in (value or {}).items():
            found = _Model(
                str(name), notes, given.get("macros") or {}, catalog["engines"], settings
            )
            entry = found.entry(model or {})
            if entry is not None and found.name in catalog["models"]:
                notes.left(f"models.{name}", f"{found.name} is taken by another model's name")
            elif entry is not None:
                catalog["models"][found.name] = entry
    _groups(catalog["models"], notes, given)
    _preload(catalog["models"], notes, given)
    return Found({k: v for k, v in catalog.items() if v or k == "models"}, notes.in_order)


def _top(catalog: Json, notes: Notes, key: str, value: Any) -> None:
    if key == "healthCheckTimeout":
        catalog["defaults"]["start_timeout"] = f"{max(int(value), 15)}s"
        notes.kept(key, f"defaults.start_timeout: {max(int(value), 15)}s")
    elif key == "unloadTimeout" and value:
        catalog["defaults"]["stop"] = {"grace": f"{int(value)}s"}
        notes.kept(key, f"defaults.stop.grace: {int(value)}s")
    elif key == "globalTTL":
        notes.kept(key, "scaling.idle_timeout of each model")
    elif key == "macros":
        notes.kept(key, "filled in where they are used")
    elif key == "apiKeys":
        notes.left(key, "keys are made, not taken over: `llmgw key add NAME`, one for each client")
    elif key not in ("groups", "hooks", "routing", "matrix"):
        notes.left(key, _FILE.get(key, "not known"))


def safe_name(name: str) -> str:
    """A model's name becomes a path and a label: other characters give way, and the name stays as an alias."""
    return (_BAD.sub("-", name).strip("-._") or "model")[:63]


class _Model:
    def __init__(self, given: str, notes: Notes, macros: Json, engines: Json, file: Json) -> None:
        self.given = given
        self.name = safe_name(given)
        self._key = f"models.{given}"
        self._notes = notes
        self._macros = macros
        self._engines = engines
        self._file = file
        self._profile: Json = {"name": "main"}

    def entry(self, model: Json) -> Json | None:
        """The model's entry, None where nothing can be started."""
        macros = Macros(self._macros, model.get("macros") or {})
        command = self._command(macros, model.get("cmd"))
        if command is None:
            return None
        entry: Json = {}
        aliases = [str(a) for a in model.get("aliases") or ()]
        if self.name != self.given:
            aliases.insert(0, self.given)
            self._notes.kept(self._key, f"models.{self.name}", "the old name stays as an alias")
        if aliases:
            entry["aliases"] = aliases
        if command.kind:
            entry["kind"] = command.kind
            self._notes.kept(f"{self._key}.cmd", f"kind: {command.kind}")
        entry["scaling"] = {"idle_timeout": self._idle(model)}
        for key, value in model.items():
            if key not in ("cmd", "macros", "ttl"):
                self._take(entry, macros, key, value)
        self._gpus(command)
        for name in macros.unknown:
            self._notes.left(f"{self._key}.cmd", f"${{{name}}} is no macro of this file")
        entry["profiles"] = [self._profile]
        return entry

    def _idle(self, model: Json) -> str:
        ttl = model.get("ttl", -1)
        seconds = int(self._file["globalTTL"] or 0) if int(ttl) < 0 else int(ttl)
        said = f"{seconds}s" if seconds else "never"
        if "ttl" in model:
            self._notes.kept(f"{self._key}.ttl", f"scaling.idle_timeout: {said}")
        return said

    def _take(self, entry: Json, macros: Macros, key: str, value: Any) -> None:
        where = f"{self._key}.{key}"
        kept = self._notes.kept
        match key:
            case "aliases":
                kept(where, "aliases")
            case "env":
                self._env(macros, where, value)
            case "checkEndpoint" if value == "none":
                self._notes.left(
                    where, "llmgw waits for an answer before it sends requests: /health"
                )
            case "checkEndpoint":
                self._profile["health"] = str(value)
                kept(where, f"health: {value}")
            case "unlisted":
                entry["listed"] = not value
                kept(where, f"listed: {str(not value).lower()}")
            case "concurrencyLimit" if value:
                entry["requests"] = {"max_in_flight": int(value)}
                kept(where, f"requests.max_in_flight: {value}", "over it requests queue, then 429")
            case "concurrencyLimit":
                kept(where, "requests.max_in_flight: 64, the default")
            case "unloadTimeout" if value:
                self._profile["stop"] = {"grace": f"{int(value)}s"}
                kept(where, f"stop.grace: {int(value)}s")
            case "capabilities":
                self._capabilities(entry, where, value)
            case _:
                self._notes.left(where, _MODEL.get(key, "not known"))

    def _capabilities(self, entry: Json, where: str, value: Any) -> None:
        said = value if isinstance(value, dict) else {}
        made: Json = {}
        if said.get("context"):
            made["context"] = int(said["context"])
        if said.get("reranker"):
            made["kind"] = "rerank"
        entry.update(made)
        became = ", ".join(f"{k}: {v}" for k, v in made.items())
        if became:
            self._notes.kept(where, became, "the other capabilities are the engine's to tell")
        else:
            self._notes.left(where, "what a model can do is the engine's to tell")

    def _env(self, macros: Macros, where: str, value: Any) -> None:
        """GPUs are llmgw's to choose; everything else goes along."""
        for line in value or ():
            name, _, text = macros.filled(str(line)).partition("=")
            if name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
                count = len([d for d in text.split(",") if d.strip() not in ("", "-1")])
                self._profile["gpus"] = count
                pinned = f"gpus_exact: [NODE:{text}]" if count == 1 else "gpus_exact"
                self._notes.kept(
                    f"{where}.{name}", f"gpus: {count}", f"llmgw chooses which; {pinned} pins them"
                )
            elif name == "CUDA_DEVICE_ORDER":
                self._notes.kept(f"{where}.{name}", "PCI_BUS_ID, always")
            else:
                self._profile.setdefault("env", {})[name] = text
                self._notes.kept(f"{where}.{name}", f"env.{name}")

    def _command(self, macros: Macros, text: Any) -> Command | None:
        where = f"{self._key}.cmd"
        try:
            command = taken_apart(macros.filled(str(text or "")))
        except ValueError as e:
            self._notes.left(where, f"cannot be taken apart ({e}); the model is left out")
            return None
        if not command.head:
            self._notes.left(where, "there is no command; the model is left out")
            return None
        profile = self._profile
        if command.launcher:
            self._container(command, where)
        elif command.dialect:
            self._known(command, command.dialect, where)
        else:
            profile["command"] = [*command.head, *command.args]
            known = "${port}" in " ".join(command.args)
            self._notes.kept(where, "command", "" if known else "it must listen on ${port}")
        self._env(macros, where, [f"{name}={text}" for name, text in command.env.items()])
        if command.dropped:
            self._notes.kept(where, "llmgw says by itself", ", ".join(command.dropped))
        return command

    def _known(self, command: Command, dialect: Dialect, where: str) -> None:
        """An engine of ours: its template says host, port, name and key, and its program is the one of this command."""
        profile = self._profile
        profile["engine"] = dialect.engine
        own = list(built_in()[dialect.engine].values["command"])
        if command.weights and len(command.head) == 1 and dialect is LLAMA:
            profile["engine"] = self._engine(command.head[0])
        elif command.head != own[: len(command.head)] or not command.weights:
            profile["command"] = dialect.command(command.head, weights=bool(command.weights))
        if command.weights:
            profile["weights"] = command.weights
        profile["args"] = command.args
        became = (k for k in ("command", "weights", "args") if k in profile)
        self._notes.kept(where, ", ".join([f"engine {profile['engine']}", *became]))

    def _container(self, command: Command, where: str) -> None:
        """Of an image of an engine of ours the weights are a path inside it, so they stay among its arguments."""
        profile, dialect = self._profile, command.dialect
        profile |= {"launcher": command.launcher, "image": command.image, "command": command.args}
        why = "the container is on the host's network: its program must listen on ${port}"
        if dialect:
            profile["engine"], why = dialect.engine, "the container is on the host's network"
            profile["command"] = dialect.command(command.args, weights=False)
        if command.mounts:
            profile["mounts"] = command.mounts
        self._notes.kept(where, f"launcher: {command.launcher}, image, command", why)

    def _engine(self, program: str) -> str:
        """The built-in one for a plain `llama-server`, else one of its own for each program."""
        if program == "llama-server":
            return "llama.cpp"
        name = safe_name(program.rpartition("/")[2])
        known = [n for n, e in self._engines.items() if e["command"][0] == program]
        if known:
            return str(known[0])
        while name in self._engines or name == "llama.cpp":
            name += "-2"
        self._engines[name] = with_program("llama.cpp", program)
        return name

    def _gpus(self, command: Command) -> None:
        """What the environment names wins; what nobody names is the CPU, which may be wrong for an engine not known."""
        profile, where = self._profile, f"{self._key}.cmd"
        if command.gpus:
            profile.setdefault("gpus", command.gpus)
        if profile.get("gpus"):
            why = "each GPU alone; set gpu_memory, and models share one that has room for both"
            self._notes.kept(where, f"gpus: {profile['gpus']}", why)
        elif command.gpus is None and "gpus" not in profile and not command.launcher:
            why = "nothing in it says whether it uses a GPU: add gpus: 1 if it does"
            self._notes.kept(where, "no gpus: on the CPU", why)


def _groups(models: Json, notes: Notes, given: Json) -> None:
    """What fits stays loaded, the idle go by last use: rules who may be beside whom have no place here."""
    routing = given.get("routing") or {}
    settings = ((routing.get("router") or {}).get("settings")) or {}
    for where, keys in (("", given), ("routing.router.settings.", settings)):
        for name, group in (keys.get("groups") or {}).items():
            key = f"{where}groups.{name}"
            if group and group.get("persistent"):
                kept = _pinned(models, group.get("members") or ())
                notes.kept(key, f"scaling.min: 1 of {', '.join(kept)}", _STARTS_AT_ONCE)
            else:
                notes.left(key, "what fits stays loaded; who must go is who was idle longest")
        if keys.get("matrix"):
            notes.left(f"{where}matrix", "memory decides what fits beside what: set gpu_memory")
    order = (((routing.get("scheduler") or {}).get("settings") or {}).get("fifo") or {}).get(
        "priority"
    )
    for name, priority in (order or {}).items():
        if safe_name(str(name)) in models:
            models[safe_name(str(name))]["scaling"]["priority"] = int(priority)
            notes.kept(
                f"routing.scheduler.settings.fifo.priority.{name}", f"scaling.priority: {priority}"
            )


def _pinned(models: Json, members: Any) -> list[str]:
    there = [safe_name(str(m)) for m in members if safe_name(str(m)) in models]
    for name in there:
        models[name]["scaling"]["min"] = 1
    return there


def _preload(models: Json, notes: Notes, given: Json) -> None:
    startup = (given.get("hooks") or {}).get("on_startup") or {}
    for name in _pinned(models, startup.get("preload") or ()):
        notes.kept("hooks.on_startup.preload", f"models.{name}.scaling.min: 1", _STARTS_AT_ONCE)
    if startup.get("profile"):
        notes.left("hooks.on_startup.profile", _FILE["profiles"])
