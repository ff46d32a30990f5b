"""`llmgw import llama-swap FILE`: another tool's configuration as a catalog. May not write a file: it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli import options
from llmgw.cli.sure import counted, say
from llmgw.errors import EXIT_DIFFERENCE, EXIT_OK, LlmgwError

app = typer.Typer(
    help="Turn another tool's configuration into a catalog.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
HEAD = """yaml-language-server: $schema=./catalog.schema.json

Made of {name} by `llmgw import llama-swap`. Read it before you use it: `llmgw catalog check FILE`.
GPUs are given whole until gpu_memory says how much a model needs.
Editors complete and check as you type by what the first line names: llmgw catalog schema > catalog.schema.json"""


@app.callback()
def whole() -> None:
    """One tool is one command below this one, also while there is only one."""


@app.command("llama-swap")
def llama_swap(
    file: Annotated[Path, typer.Argument(help="Its configuration, config.yaml.")],
    output: options.Output = "table",
) -> int:
    """Print the catalog that a llama-swap configuration comes to.

    llmgw import llama-swap config.yaml > catalog.yaml; on stderr, what became of each key.
    """
    import json

    from llmgw import catalog as catalogs
    from llmgw.catalog import llama_swap as swap
    from llmgw.catalog.llama_swap import text
    from llmgw.errors import CatalogError

    try:
        given, lines = text.read(str(file), file.read_text())
    except (OSError, UnicodeDecodeError) as e:
        said = getattr(e, "strerror", None) or "is no text"
        msg = f"cannot read {file}: {said.lower()}"
        raise LlmgwError(msg, "name its configuration") from e
    found = swap.converted(given, lines)
    catalog = text.written(found.catalog, HEAD.format(name=file.name))
    problems: tuple[str, ...] = ()
    try:
        catalogs.load_sources({"catalog.yaml": catalog})
    except CatalogError as e:
        problems = e.problems
    if output == "json":
        rows = [
            {"key": f.key, "line": f.line, "became": f.became or None, "why": f.why}
            for f in found.fates
        ]
        document = {
            "schema": "llmgw.import/1",
            "catalog": catalog,
            "keys": rows,
            "problems": list(problems),
        }
        typer.echo(json.dumps(document, indent=2))
        return EXIT_DIFFERENCE if problems else EXIT_OK
    typer.echo(catalog, nl=False)
    for fate in found.fates:
        became = f"-> {fate.became}" if fate.became else "not taken over"
        say(
            f"{file.name}:{fate.line}: {fate.key} {became}" + (f" ({fate.why})" if fate.why else "")
        )
    for problem in problems:
        say(f"to be mended by hand: {problem}")
    say(
        f"{counted(len(found.fates) - found.left, 'key')} taken over, {found.left} not; next: llmgw catalog check FILE"
    )
    return EXIT_DIFFERENCE if problems else EXIT_OK
