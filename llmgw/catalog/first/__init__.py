"""The first catalog, for the engines and weights that are on this box (`llmgw init`).

`gguf` reads a file's header, `look` finds what is there, `write` words the catalog. Memory is an estimate and says so.
May not start anything, nor read more of a file than its header.
"""

from llmgw.catalog.first.look import Box, Weights, looked
from llmgw.catalog.first.write import written

__all__ = ["Box", "Weights", "looked", "written"]
