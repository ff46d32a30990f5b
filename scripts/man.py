"""Writes the man pages out of the program: llmgw(1), llmgw-adopt(1) and llmgw-catalog(5).

Answers for: packaging/man/*. Words of commands come from --help, those of keys from the schema; only what neither says
(exit codes, files, environment) stands here. Format: groff_man(7).

    python -m scripts.man [--check]
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from llmgw import __version__
from llmgw.cli import program
from scripts.docs import below, catalog_schema, kinds
from scripts.generated import ROOT, settle

FOLDER = ROOT / "packaging" / "man"
EXITS = (
    ("0", "It went well; adopt --dry-run: nothing to do; status --check: all is well."),
    (
        "1",
        "It failed, or there is a difference: adopt --dry-run lists something, status --check found trouble.",
    ),
    ("2", "The command line is wrong."),
    ("3", "It could not tell: control or an agent did not answer, or the plan is incomplete."),
    ("4", "Not authorised."),
    ("70", "A bug; one line says where the report is."),
    ("130", "Ctrl-C. In a follow or a wait it never stops an engine."),
)
ENVIRONMENT = (
    ("LLMGW_CONTROL", "URL of control, for the verbs and for agents."),
    ("LLMGW_TOKEN", "The operator's token; LLMGW_NODE_TOKEN is that of agents and gateways."),
    ("LLMGW_STATE_DIR", "The folder that holds control/ and agent/."),
    ("NO_COLOR", "No colour. --color always wins over it."),
    (
        "LLMGW_*",
        "Any option of a daemon: the flag's name in capitals. Flags win, then this, then the file.",
    ),
)
FILES = (
    ("/etc/llmgw/catalog.yaml", "The catalog; without it ./catalog.yaml. See llmgw-catalog(5)."),
    (
        "/var/lib/llmgw/",
        "State, as root; else $XDG_STATE_HOME/llmgw/. control/inventory.db is the inventory.",
    ),
)
EXAMPLES = (
    ("llmgw init catalog.yaml && llmgw up --catalog catalog.yaml", "Run what this box has."),
    (
        "llmgw adopt --dry-run && systemctl restart llmgw-control",
        "Restart only where that changes nothing.",
    ),
    (
        "llmgw status -o json | jq -r '.replicas[]|select(.state!=\"ready\").replica'",
        "What is not ready.",
    ),
)


def escaped(text: str) -> str:
    """Text as roff: backslashes, a dot or quote that would begin a request, and hyphens that people copy."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))


def head(name: str, section: int) -> list[str]:
    return [f'.TH {name.upper()} {section} "" "llmgw {__version__}"', ".nh", ".ad l"]


def tagged(rows: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for tag, text in rows:
        yield from (".TP", f".B {escaped(tag)}", escaped(text))


def sentences(text: str) -> Iterator[str]:
    """Paragraphs of a help text; an indented one is an example."""
    for part in re.split(r"\n\s*\n", text.strip()):
        yield ".PP"
        yield escaped(" ".join(part.split()))


def options(command: Any, context: Any) -> Iterator[str]:
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and "--help" not in param.opts:
            yield from (".TP", f".B {escaped(record[0])}", escaped(" ".join(record[1].split())))


def commands(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, Any, Any]]:
    context = typer.Context(command, info_name=name, parent=parent)
    for child_name, child in getattr(command, "commands", {}).items():
        if child.hidden:
            continue
        inner = typer.Context(child, info_name=child_name, parent=context)
        if getattr(child, "commands", None):
            yield from commands(child, child_name, context)
        else:
            yield inner.command_path, child, inner


def usage(path: str, command: Any, context: Any) -> str:
    pieces = " ".join(command.collect_usage_pieces(context))
    return f'.SY "{escaped(path)}"\n{escaped(pieces)}\n.YS'


def main_page() -> str:
    app = typer.main.get_command(program())
    lines = [*head("llmgw", 1), ".SH NAME", "llmgw \\- run LLM engines on a few machines"]
    lines += [".SH SYNOPSIS", ".SY llmgw", "[OPTIONS] COMMAND [ARGS]...", ".YS", ".SH DESCRIPTION"]
    lines += sentences(app.help or "")
    lines += [
        ".PP",
        "Every running engine is adopted by a restart of any part: llmgw\\-adopt(1) shows it before.",
    ]
    lines.append(".SH COMMANDS")
    for path, command, context in commands(app, "llmgw"):
        lines += [f".SS {escaped(path)}", usage(path, command, context)]
        lines += sentences(command.help or "")
        lines += options(command, context)
    lines += [".SH EXIT STATUS", *tagged(EXITS), ".SH ENVIRONMENT", *tagged(ENVIRONMENT)]
    lines += [".SH FILES", *tagged(FILES), ".SH EXAMPLES"]
    for example, what in EXAMPLES:
        lines += [".TP", f".B {escaped(example)}", escaped(what)]
    lines += [".SH SEE ALSO", ".BR llmgw\\-adopt (1),", ".BR llmgw\\-catalog (5)"]
    return "\n".join(lines) + "\n"


def adopt_page() -> str:
    app = typer.main.get_command(program(["adopt"]))
    ((path, command, context),) = commands(app, "llmgw")
    about = (command.help or "").strip()
    lines = [
        *head("llmgw-adopt", 1),
        ".SH NAME",
        "llmgw\\-adopt \\- show what a restart would do, or survey the fleet",
    ]
    lines += [".SH SYNOPSIS", usage(path, command, context), ".SH DESCRIPTION", *sentences(about)]
    lines += [".SH OPTIONS", *options(command, context)]
    lines += [
        ".SH VERDICTS",
        "One for each engine that was found or believed to run.",
        *tagged(VERDICTS),
    ]
    lines += [".SH EXIT STATUS", *tagged(EXITS)]
    lines += [".SH SEE ALSO", ".BR llmgw (1),", ".BR llmgw\\-catalog (5)"]
    return "\n".join(lines) + "\n"


_CATALOG = (
    "A YAML file, or a folder of *.yaml read in the order of their names. Unknown keys are errors; "
    "llmgw catalog check says every one with its line."
)
#: Of contract/cli.md; `adopt -o json` has these words.
VERDICTS = (
    (
        "adopt",
        "It goes on, and is counted; where its line says 'then rolled' it is replaced later.",
    ),
    ("join", "A further rank of a replica over several nodes; it goes on."),
    ("keep", "Known already; it goes on."),
    ("replace", "What runs takes the place of what was placed and never came up."),
    ("stray", "It competes with one that is up, and will be drained."),
    ("unclaimed", "The catalog has no place for it; it is stopped after stray_grace."),
    ("conflict", "Two claims on one thing; the reason says which."),
    ("forget", "Believed to run, and the agent does not run it."),
    ("terminal", "It has ended, and is recorded."),
    ("hold", "Nobody can tell now; it is left alone."),
)


def catalog_page() -> str:
    schema = catalog_schema()
    lines = [
        *head("llmgw-catalog", 5),
        ".SH NAME",
        "llmgw\\-catalog \\- which models a fleet serves, and how",
    ]
    lines += [".SH DESCRIPTION", _CATALOG, ".SH KEYS"]
    for path, found in below(schema, schema.get("$defs", {})):
        lines += keys(found, schema.get("$defs", {}), path, (id(found),))
    example = (ROOT / "catalog.example.yaml").read_text()
    lines += [".SH EXAMPLE", ".EX", escaped(example.rstrip()), ".EE"]
    lines += [".SH SEE ALSO", ".BR llmgw (1)"]
    return "\n".join(lines) + "\n"


def keys(
    schema: dict[str, Any], defs: dict[str, Any], path: str, seen: tuple[int, ...]
) -> Iterator[str]:
    for key, value in schema["properties"].items():
        default = value.get("default")
        kind = kinds(value).replace("`", "").replace("\\|", "|")
        facts = f"{kind}" if default in (None, "", [], {}) else f"{kind}; default {plain(default)}"
        yield from (
            ".TP",
            f".B {escaped(path + key)}",
            escaped(f"({facts}) {value.get('description', '')}"),
        )
        for more, found in below(value, defs):
            if id(found) not in seen:
                yield from keys(found, defs, f"{path}{key}{more}.", (*seen, id(found)))


def plain(value: Any) -> str:
    return "yes" if value is True else "no" if value is False else str(value)


def files() -> dict[Path, str]:
    return {
        FOLDER / "llmgw.1": main_page(),
        FOLDER / "llmgw-adopt.1": adopt_page(),
        FOLDER / "llmgw-catalog.5": catalog_page(),
    }


if __name__ == "__main__":
    sys.exit(settle(files(), sys.argv[1:]))
