"""The catalog: one YAML file, or a directory of them, read strictly into the core's `Catalog`.

How it is cut: `source` knows YAML and where things stand, `keys` declares what there is, `read` walks the one by the
other, `build` and `check` make the core's values with their `fingerprint`, `files` puts it together; `changes`,
`document` (without what `redact` hides) and `json_schema` say things about it.
Nothing here has a side effect but reading the files it is given.
"""

from llmgw.catalog.changes import Change, diff
from llmgw.catalog.document import show
from llmgw.catalog.files import load, load_sources, loads, read_source
from llmgw.catalog.json_schema import schema
from llmgw.catalog.units import duration_text, parse_duration, parse_size, size_text

__all__ = [
    "Change",
    "diff",
    "duration_text",
    "load",
    "load_sources",
    "loads",
    "parse_duration",
    "parse_size",
    "read_source",
    "schema",
    "show",
    "size_text",
]
