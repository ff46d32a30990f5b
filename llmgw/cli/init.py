"""`llmgw init`: the first catalog, for the engines and weights of this box. May not replace a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli import options
from llmgw.cli.sure import say
from llmgw.errors import LlmgwError, UsageError


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
    is estimated, and said to be an estimate.
    """
    from llmgw import catalog as catalogs
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
    loaded = catalogs.load_sources({str(file or "catalog.yaml"): text})
    if file is None:
        typer.echo(text, nl=False)
    else:
        _write(file, text)
    _tell(box, cards.error, len(loaded.models), file)


def _write(file: Path, text: str) -> None:
    """Never over another file: that one may be a week's work."""
    try:
        with file.open("x") as out:
            out.write(text)
    except FileExistsError as e:
        msg = f"{file} is there already"
        hint = f"`llmgw init` alone prints what it would write; or name another file than {file}"
        raise LlmgwError(msg, hint) from e
    except OSError as e:
        msg = f"cannot write {file}: {(e.strerror or str(e)).lower()}"
        raise LlmgwError(msg, "name a file in a folder that is there and yours") from e


def _tell(box: object, gpu_error: str, models: int, file: Path | None) -> None:
    from llmgw.catalog.first import Box

    assert isinstance(box, Box)
    if gpu_error:
        say(f"the GPUs are not known ({gpu_error}); the catalog counts with none")
    engines = ", ".join(f"{e} ({p})" for e, p in sorted(box.programs.items())) or "no engine"
    left = sum(bool(w.trouble) for w in box.weights)
    say(f"found {engines}; {models} models" + (f", {left} files left out" if left else ""))
    if file is not None:
        say(f"wrote {file}; next: llmgw up --catalog {file}")
