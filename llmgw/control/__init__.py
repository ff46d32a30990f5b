"""Control's shells: everything that touches the world around the core's two functions.

    api ── sessions ─┐                                      ┌─ commands to agents (`sessions`), routes to gateways
    signals ─────────┼─► `loop`: observe, decide, `apply` ──┼─ `keep` ─► `store`: the inventory file
    spawn, lease ────┘    one task, one state               └─ `story`: the log, events

`loop` is the only writer, `calls` is what a request does in its turn, `main` puts it together. What is right for the
fleet is the core's to say.
"""
