"""`llmgw init`: the first catalog, for the engines and weights of this box. May not replace a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli import options
from llmgw.cli.sure import counted, say
from llmgw.errors import CatalogError, LlmgwError, UsageError

if TYPE_CHECKING:
    from llmgw.catalog.first import Box


def init(
    file: Annotated[
        Path | None, typer.Argument(help="Where to write it; without it, it is printed.")
    ] = None,
    models: Annotated[
        list[Path] | None,
        typer.Option(
            help="A folder with weights; repeat it. [default: /models, ~/models, and the caches of "
            "llama.cpp, LM Studio and Hugging Face]"
        ),
    ] = None,
    gpus: options.Gpus = None,
) -> None:
    """Write a first catalog, with comments, for this box.

    llmgw init catalog.yaml, for the engines and weights that it finds; then llmgw up --catalog catalog.yaml. Memory
    is estimated, and said to be an estimate. What it does not find is left to fill in, and said. Beside the file it
    writes catalog.schema.json, by which editors complete and check it.
    """
    from llmgw import config
    from llmgw.agent.doctor import doors
    from llmgw.catalog import first

    for folder in models or ():
        if not folder.expanduser().is_dir():
            msg = f"--models {folder}: is no folder"
            raise UsageError(
                msg, "name a folder with .gguf files, or of safetensors with a config.json"
            )
    source = config.Given({"gpus": gpus}).text("gpus", "auto")
    cards = doors.cards(source)
    box = first.looked(models or ())
    text = first.written(box, tuple(g.memory_bytes for g in cards.gpus or () if g.healthy))
    wrote: list[str] = []
    if file is None:
        typer.echo(text, nl=False)
    else:
        wrote = _write(file, text)
    _tell(box, cards.error, text, file, wrote)


def _write(file: Path, text: str) -> list[str]:
    """What it wrote. Never over another file: that one may be a week's work."""
    import json

    from llmgw import catalog as catalogs

    schema = file.with_name("catalog.schema.json")
    wrote = [str(file)]
    try:
        with file.open("x") as out:
            out.write(text)
        if not schema.exists():
            schema.write_text(json.dumps(catalogs.schema(), indent=2) + "\n")
            wrote.append(f"{schema} (for editors)")
    except FileExistsError as e:
        msg = f"{file} is there already"
        hint = f"`llmgw init` alone prints what it would write; or name another file than {file}"
        raise LlmgwError(msg, hint) from e
    except OSError as e:
        msg = f"cannot write {e.filename or file}: {(e.strerror or str(e)).lower()}"
        raise LlmgwError(msg, "name a file in a folder that is there and yours") from e
    return wrote


def _tell(box: Box, gpu_error: str, text: str, file: Path | None, wrote: list[str]) -> None:
    """What was found, and the next step: another one where something is left to fill in."""
    from llmgw import catalog as catalogs

    if gpu_error:
        say(f"the GPUs are not known ({gpu_error}); the catalog counts with none")
    engines = ", ".join(f"{e} ({p})" for e, p in sorted(box.programs.items())) or "no engine"
    left = sum(bool(w.trouble) for w in box.weights)
    weights = counted(len(box.weights) - left, "model")
    say(f"found {engines}; {weights}" + (f", {counted(left, 'file')} left out" if left else ""))
    name = str(file or "FILE")
    if wrote:
        say(f"wrote {' and '.join(wrote)}")
    try:
        catalogs.load_sources({name: text})
    except CatalogError as e:
        for problem in e.problems:
            say(problem)
        say(
            f"next: fill in {'this' if len(e.problems) == 1 else 'these'}, then llmgw catalog check {name}"
        )
    else:
        say(f"next: llmgw up --catalog {name}")
