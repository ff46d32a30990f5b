"""Every expected failure of llmgw: what was refused, the fact with its values, what to try; and the exit codes.

May not import anything of llmgw: it is the lowest floor. A bug is not an `LlmgwError`: it ends in `cli`'s one door
(exit 70).
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_DIFFERENCE = 1
EXIT_USAGE = 2
EXIT_UNKNOWN = 3
EXIT_UNAUTHORISED = 4
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class LlmgwError(Exception):
    """An expected failure. `message` says what was refused and the fact; `hint` says what to try.

    `code` is the closed word used in JSON errors, `exit_code` that of contract/cli.md, `status` the HTTP status
    under which an API reports it.
    """

    code = "failed"
    exit_code = EXIT_DIFFERENCE
    status = 400

    def __init__(self, message: str, hint: str = "", *, code: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or type(self).code
        self.status = status or type(self).status


class UsageError(LlmgwError):
    """The call's words are off (exit 2)."""

    code = "usage"
    exit_code = EXIT_USAGE


class UnreachableError(LlmgwError):
    """Control or an agent did not answer, so nothing can be said (exit 3)."""

    code = "unreachable"
    exit_code = EXIT_UNKNOWN
    status = 503


class UnauthorisedError(LlmgwError):
    """No token, or the wrong one (exit 4)."""

    code = "unauthorised"
    exit_code = EXIT_UNAUTHORISED
    status = 401


class CatalogError(LlmgwError):
    """A catalog that does not parse: `problems` holds every `FILE:LINE:COL: what - hint`, not only the first."""

    code = "catalog_invalid"

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def system_said(error: BaseException) -> str:
    """What the system said, below what a library made of it; "" where it said nothing."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return below.strerror
        below = below.__cause__ or below.__context__
    return ""


def first_words(answer: bytes) -> str:
    """Of an answer in nobody's form, a page of HTML perhaps: one short line without markup."""
    import re  # noqa: PLC0415 - what answers so is rare

    text = answer[:2000].decode(errors="replace")
    plain = re.sub(r"(?is)<(style|script)\b.*?(</\1>|$)|<[a-z!/][^>]*(>|$)", " ", text)
    return " ".join(plain.split())[:100]
