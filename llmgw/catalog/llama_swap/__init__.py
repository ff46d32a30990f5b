"""A llama-swap configuration as a catalog, and of each of its keys what it became or why it became nothing.

Facts: its documented example, docs/config.example.yaml of mostlygeek/llama-swap (2026). What has no counterpart is
named, never dropped without a word. May not read a file nor look at this box: what comes out is a text to be read.
"""

from llmgw.catalog.llama_swap.convert import converted
from llmgw.catalog.llama_swap.found import Fate, Found

__all__ = ["Fate", "Found", "converted"]
