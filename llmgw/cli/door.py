"""The one door out: what a command returned or raised becomes an exit code and at most two lines on stderr.

Answers for: exit codes of contract/cli.md, no traceback unless asked for, no secret in a bug report. It may not know
any verb.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from llmgw import __version__
from llmgw.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, LlmgwError, UsageError

#: As if killed by SIGPIPE: what shells expect of a program whose reader left.
EXIT_PIPE = 141
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
#: Whose code writes the answer: the last of a traceback that ends where that failed.
_WRITERS = ("typer.", "click.", "llmgw.cli.", "llmgw.render.")
#: Options of every command that take a value.
_VALUED = frozenset({"--color", "--pin", "--ca"})
SECRETS = ("LLMGW_TOKEN", "LLMGW_NODE_TOKEN", "LLMGW_ETCD_PASSWORD")


def run(argv: list[str]) -> int:
    from llmgw.cli import VERBS, program

    if "_LLMGW_COMPLETE" in os.environ:
        # What add_completion=True would do, and not the two options that it adds to every help.
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    argv, debug = _anywhere(argv)
    app = program(_meant(argv, list(VERBS)))

    def call() -> object:
        _streams()
        return app(argv, prog_name="llmgw", standalone_mode=False)

    return through(call, debug=debug)


def _streams() -> None:
    """What this terminal or file cannot spell is spelled out instead of failing (LC_ALL=C, PYTHONIOENCODING=ascii).

    One that is closed (`>&-`, `2>&-`, `<&-`) is one that nobody reads or types on; an error must not go to stdout
    then.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as we live
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _meant(argv: list[str], verbs: list[str]) -> list[str]:
    """The verb that the line names; those it may become where a shell asks; all for help and for typing errors."""
    if "_LLMGW_COMPLETE" in os.environ:
        typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        words = typed.split()[1:]
        if len(words) == 1 and not typed[-1:].isspace():
            return [verb for verb in verbs if verb.startswith(words[0])]
    else:
        values = {i + 1 for i, word in enumerate(argv) if word in _VALUED}
        words = [word for i, word in enumerate(argv) if i not in values]
    named = next((word for word in words if not word.startswith("-")), "")
    return [named] if named in verbs else verbs


def _anywhere(argv: list[str]) -> tuple[list[str], bool]:
    """`--color X`, `--pin X`, `--ca X` and `--debug` may stand anywhere; typer wants them in front of the verb."""
    front, rest, left = [], [], list(argv)
    while left:
        word = left.pop(0)
        if word == "--":
            rest += [word, *left]
            break
        if word == "--debug" or ("=" in word and word.partition("=")[0] in _VALUED):
            front.append(word)
        elif word in _VALUED and left:
            front += [word, left.pop(0)]
        else:
            rest.append(word)
    return [*front, *rest], "--debug" in front


def through(call: Callable[[], object], *, debug: bool = False) -> int:
    try:
        code = call()
        _flush()
    except LlmgwError as e:
        return tell(e)
    except typer.TyperException as e:
        return _misuse(e)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit) as e:
        if isinstance(e, SystemExit) and not e.code:  # a completion was answered
            return EXIT_OK
        # The reader left (`llmgw status | head -1`), which typer turns into SystemExit: nothing to say or to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except Exception as e:  # noqa: BLE001 - the one place where a bug ends
        if isinstance(e, OSError) and _unwritten(e):
            # Else the interpreter tries once more at its end, and says so in words of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return tell(LlmgwError(f"cannot write the answer: {(e.strerror or str(e)).lower()}"))
        if debug:
            import traceback

            traceback.print_exc()
        return _bug(e)
    return code if isinstance(code, int) else EXIT_OK


def _flush() -> None:
    if sys.stdout is not None:  # closed by whoever called (`>&-`): nobody wants the answer
        sys.stdout.flush()


def _unwritten(error: OSError) -> bool:
    """It is the answer that cannot be written (a full disk), not a file of some other code."""
    if error.errno not in _FULL or error.filename is not None or sys.stdout is None:
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = "" if last is None else str(last.tb_frame.f_globals.get("__name__"))
    return where.startswith(_WRITERS)


def tell(error: LlmgwError) -> int:
    print(f"llmgw: {error.message}", file=sys.stderr)  # noqa: T201
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)  # noqa: T201
    return error.exit_code


def _misuse(error: typer.TyperException) -> int:
    """A usage error; without any command the help is the answer."""
    message = error.format_message()
    if message.startswith("Usage:"):
        print(message, file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    context = getattr(error, "ctx", None)
    said, near = message, ""
    for mark in (" Did you mean ", " (Possible options: "):
        if mark in message:
            said, _, near = message.partition(mark)
    hint = f"did you mean {near.rstrip('?)')}?" if near else ""
    hint = hint or f"`{context.command_path if context else 'llmgw'} --help` shows what there is"
    return tell(UsageError(said[:1].lower() + said[1:].rstrip("."), hint))


def _bug(error: Exception) -> int:
    where = _report(error)
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # a task group wraps what broke it
    said = " ".join(str(error).split())[:200]
    line = f"llmgw: a bug: {type(error).__name__}: {_redacted(said)}; report in {where}"
    print(line, file=sys.stderr)  # noqa: T201
    return EXIT_BUG


def _report(error: Exception) -> str:
    """Traceback and versions, ready to paste; no environment, and no token that may have got into a message."""
    import tempfile
    import time
    import traceback

    lines = [
        f"llmgw {__version__}, Python {sys.version.split()[0]}, {os.uname().sysname} {os.uname().release}",
        f"command: llmgw {' '.join(sys.argv[1:])}",
        "",
        "".join(traceback.format_exception(error)),
    ]
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    handle, name = tempfile.mkstemp(prefix=f"llmgw-bug-{stamp}-", suffix=".txt")  # 0600
    with os.fdopen(handle, "w") as file:
        file.write(_redacted("\n".join(lines)))
    return name


def _redacted(text: str) -> str:
    import re

    for name in SECRETS:
        if value := os.environ.get(name, "").strip():
            text = text.replace(value, "***")
    return re.sub(r"(?i)(bearer )\S+", r"\1***", text)
