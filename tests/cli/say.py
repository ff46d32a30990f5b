"""Calls the command line inside the test's process, as its front door does.

Answers for: exit code, stdout and stderr of one call. It may not know any verb. Daemons are processes instead.
"""

import contextlib
import io
from typing import NamedTuple

from llmgw.cli import door


class Said(NamedTuple):
    code: int
    out: str
    err: str


def llmgw(*words: object) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = door.run([str(word) for word in words])
    return Said(code, out.getvalue(), err.getvalue())
