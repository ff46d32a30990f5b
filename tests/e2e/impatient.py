"""`llmgw` that waits seconds, not a minute, for a gateway which may not have said yet what it serves (`core.idle`).

Answers for: tests of what idle engines do with real processes, in a bearable time. Nothing else differs.
"""

import runpy

from llmgw.core.types import routes

#: More than the pause between two posts of a gateway.
routes.GATEWAY_GONE_S = 7.0
routes.GATEWAY_WORD_S = 5.0

if __name__ == "__main__":
    runpy.run_module("llmgw", run_name="__main__", alter_sys=True)
