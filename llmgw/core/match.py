"""Whether a process that somebody started by hand runs what a profile asks for, and where the two differ (A70, A71).

A command line is compared option by option, in any order, each option under one of its names; `${...}` that is not
known where it is compared matches anything. What llmgw settles by looking instead of reading is left out: address, port
and key. A name of its own is no difference: the gateway calls an engine by the name it answers to. May not decide what
follows, nor look at a process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from llmgw.core.types.by_hand import Fact
from llmgw.core.types.catalog import Catalog

#: Programs of the built-in engines: looked for also where no control has said what its catalog runs.
ENGINES = frozenset({"llama-server", "ggml-rpc-server", "vllm", "sglang", "ollama"})
#: Whatever runs a script is told by the script.
INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*|(?:ba|da|z)?sh|node|perl|ruby")
#: What comes next is a program in words.
CODE = re.compile(r"-[A-Za-z]*c")
HOLE = re.compile(r"\$\$|\$\{([^}]*)\}")
#: Seen by looking at the listener, or by asking with the key: how it was said does not matter.
LOOKED_AT = frozenset({"--host", "--port"})
KEY = re.compile(r"--(?:[a-z0-9-]+-)?(?:api-key|api-key-file|token|password|secret)")
OURS = frozenset({"${port}", "${host}", "${api_key}", "${model}"})
HIDDEN = "***"
#: What names a secret, among variables and among options; `MAX_TOKENS` and `TOKENIZERS_PARALLELISM` name none.
SECRET_ENV = re.compile(r"KEY|SECRET|PASSW|CREDENTIAL|TOKEN(?!S|IZ)", re.IGNORECASE)
SECRET_OPTION = re.compile(
    r"-{1,2}(?:[a-z0-9]+[-_])*(?:key|token|secret|password|passwd)", re.IGNORECASE
)
#: Short names and other spellings -> the one they are compared under. llama.cpp tools/server/README.md; `vllm serve
#: --help=all`. A word that no program below knows is compared as it is written.
SPELLINGS: dict[str, dict[str, str]] = {
    "llama-server": {
        "-m": "--model",
        "-c": "--ctx-size",
        "-ngl": "--n-gpu-layers",
        "--gpu-layers": "--n-gpu-layers",
        "-np": "--parallel",
        "-fa": "--flash-attn",
        "-a": "--alias",
        "-t": "--threads",
        "-tb": "--threads-batch",
        "-b": "--batch-size",
        "-ub": "--ubatch-size",
        "-ctk": "--cache-type-k",
        "-ctv": "--cache-type-v",
        "-n": "--n-predict",
        "--predict": "--n-predict",
        "-ts": "--tensor-split",
        "-sm": "--split-mode",
        "-mg": "--main-gpu",
        "-mm": "--mmproj",
        "-md": "--model-draft",
        "-hf": "--hf-repo",
        "-hfr": "--hf-repo",
    },
    "vllm": {
        "-tp": "--tensor-parallel-size",
        "-pp": "--pipeline-parallel-size",
        "-dp": "--data-parallel-size",
        "-q": "--quantization",
    },
}


class Known(Struct, frozen=True):
    """What is known where a command is compared: placeholders, the weights (maybe with some left), the folder."""

    values: Mapping[str, str] = {}
    weights: str = ""
    cwd: str = ""


class Option(Struct, frozen=True):
    """`name` as it was written, its value, None without."""

    name: str
    value: str | None


class Line(Struct, frozen=True):
    """A command line taken apart: `options` by the name they are compared under."""

    program: str
    words: tuple[str, ...]
    options: dict[str, tuple[Option, ...]]


# ---------------------------------------------------------------- command lines


def program(argv: Sequence[str]) -> str:
    """What runs: the last part of its name; of an interpreter's, the script or module."""
    return _split(argv)[0]


def programs(catalog: Catalog) -> tuple[str, ...]:
    """Of all profiles; what says nothing by itself (a shell with a script in its words) is left out."""
    found = {program(p.command) for m in catalog.models.values() for p in m.profiles}
    return tuple(sorted(p for p in found if p and "${" not in p and not INTERPRETER.fullmatch(p)))


def _split(argv: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    words = list(argv)
    name = _base(words.pop(0)) if words else ""
    if not INTERPRETER.fullmatch(name):
        return name, tuple(words)
    for i, word in enumerate(words):
        if word == "-m":
            return " ".join(words[i + 1 : i + 2]), tuple(words[i + 2 :])
        if CODE.fullmatch(word):
            break
        if not word.startswith("-"):
            return _base(word), tuple(words[i + 1 :])
    return name, tuple(words)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def line(argv: Sequence[str]) -> Line:
    """Apart; which words are an option's value is guessed, the same way for all: those that begin with no dash."""
    name, rest = _split(argv)
    words: list[str] = []
    options: dict[str, tuple[Option, ...]] = {}
    at = 0
    while at < len(rest):
        word = rest[at]
        at += 1
        if not _is_option(word):
            words.append(word)
            continue
        value: str | None = None
        if word.startswith("--") and "=" in word:
            word, _, value = word.partition("=")
        elif at < len(rest) and not _is_option(rest[at]):
            value = rest[at]
            at += 1
            while SECRET_OPTION.fullmatch(word) and at < len(rest) and not _is_option(rest[at]):
                at += 1  # further keys of the same option are no arguments
        key = _spelling(name, word)
        options[key] = (*options.get(key, ()), Option(word, value))
    return Line(name, tuple(words), options)


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not (word[1].isdecimal() or word[1] == ".")


def _spelling(name: str, word: str) -> str:
    plain = word.replace("_", "-") if word.startswith("--") else word
    return SPELLINGS.get(name, {}).get(plain, plain)


def hidden(argv: Sequence[str]) -> tuple[str, ...]:
    """For people and other machines: without the values of keys, of which an option may take several."""
    out: list[str] = []
    secret = False
    for word in argv:
        name, eq, _ = word.partition("=")
        is_key = SECRET_OPTION.fullmatch(name) is not None
        if secret and not word.startswith("--") and not is_key:
            out.append(HIDDEN)
            continue
        out.append(f"{name}={HIDDEN}" if eq and is_key else word)
        secret = is_key and not eq
    return tuple(out)


def key_in(argv: Sequence[str]) -> str:
    """The key that an engine was given in its words, "" for none."""
    given = line(argv).options.get("--api-key", ())
    return next((o.value for o in given if o.value), "")


# ---------------------------------------------------------------- comparing


def compare(command: Sequence[str], argv: Sequence[str], known: Known) -> tuple[Fact, ...]:
    """All that the two say: in the order of the profile, then what only the process has."""
    ask, runs = line(command), line(argv)
    facts = [fact("program", ask.program, runs.program, ask.program == runs.program)]
    if ask.words or runs.words:
        facts.append(_arguments(ask.words, runs.words, known))
    for key in dict.fromkeys((*ask.options, *runs.options)):
        wanted, has = ask.options.get(key, ()), runs.options.get(key, ())
        if not _looked_at(key, wanted):
            facts.append(_option(wanted, has, known))
    return tuple(facts)


def _looked_at(key: str, wanted: tuple[Option, ...]) -> bool:
    given = {o.value for o in wanted}
    return key in LOOKED_AT or bool(KEY.fullmatch(key)) or (bool(given) and given <= OURS)


def _arguments(wanted: Sequence[str], has: Sequence[str], known: Known) -> Fact:
    same = len(wanted) == len(has) and all(map(lambda w, h: fits(w, h, known), wanted, has))
    return fact("arguments", " ".join(filled(w, known) for w in wanted), " ".join(has), same)


def _option(wanted: tuple[Option, ...], has: tuple[Option, ...], known: Known) -> Fact:
    same = len(wanted) == len(has) and all(
        w.value == h.value if w.value is None or h.value is None else fits(w.value, h.value, known)
        for w, h in zip(wanted, has, strict=True)
    )
    said = " ".join(_value(filled(w.value, known) if w.value else w.value) for w in wanted)
    return fact((wanted or has)[0].name, said, " ".join(_value(h.value) for h in has), same)


def _value(text: str | None) -> str:
    return "set" if text is None else text or "''"


def fact(what: str, wanted: str, runs: str, same: bool) -> Fact:  # noqa: FBT001 - it is a value
    return Fact(what, wanted or "nothing", runs or "nothing", same)


def fits(text: str, value: str, known: Known) -> bool:
    """Whether a value is what `text` stands for; a relative path counts from the folder of the process."""
    pattern = re.compile("".join(_pieces(text, known)), re.DOTALL)
    inside = f"{known.cwd.rstrip('/')}/{value.removeprefix('./')}"
    return bool(pattern.fullmatch(value) or (known.cwd and pattern.fullmatch(inside)))


def _pieces(text: str, known: Known) -> Iterator[str]:
    """A pattern: what is not known stands for anything but nothing."""
    at = 0
    text = _with_weights(text, known)
    for hole in HOLE.finditer(text):
        yield re.escape(text[at : hole.start()])
        name, at = hole[1], hole.end()
        yield (
            re.escape("$")
            if name is None
            else re.escape(known.values[name])
            if name in known.values
            else ".+"
        )
    yield re.escape(text[at:])


def filled(text: str, known: Known) -> str:
    """For people: what is not known stays as it is written."""

    def value(hole: re.Match[str]) -> str:
        return "$" if hole[1] is None else known.values.get(hole[1], hole[0])

    return HOLE.sub(value, _with_weights(text, known))


def _with_weights(text: str, known: Known) -> str:
    return text.replace("${weights}", known.weights) if known.weights else text


def served_name(command: Sequence[str], argv: Sequence[str], default: str) -> str:
    """What it answers to: where the profile would give it a name, the one it was given.

    Without one it is called as its model is: by vLLM and SGLang, and llama-server takes any name.
    """
    ask, runs = line(command), line(argv)
    for key, wanted in ask.options.items():
        if {o.value for o in wanted} == {"${model}"}:
            return next((o.value for o in runs.options.get(key, ()) if o.value), default)
    return ""


def environment(env: Mapping[str, str], has: Mapping[str, str], known: Known) -> Iterator[Fact]:
    """Of the profile's own variables; where it was told address and port is seen by looking, a key by asking."""
    for name, text in env.items():
        holes = {h[0] for h in HOLE.finditer(text)}
        if holes and holes <= OURS:
            continue
        runs = has.get(name)
        same = runs is not None and fits(text, runs, known)
        secret = SECRET_ENV.search(name) is not None
        wanted = HIDDEN if secret and text and not holes else filled(text, known)
        yield fact(name, wanted, "unset" if runs is None else HIDDEN if secret else runs, same)


def words(facts: Iterable[Fact]) -> str:
    """What differs, in one line: `-c 16384 instead of 32768; ...`."""
    return "; ".join(f"{f.what} {f.runs} instead of {f.wanted}" for f in facts if not f.same)
