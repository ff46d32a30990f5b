"""The only place that words a table: documents of contract/cli.md in, lines for people out.

`page` puts tables and lines on a terminal or through a pipe; `plan`, `status` and `catalog` word one document each.
They may not ask, decide or import msgspec.
"""
