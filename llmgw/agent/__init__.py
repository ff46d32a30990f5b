"""The agent: one process per node that owns its engines' processes.

`run.run(settings)` is the way in. Decisions are `core.supervise`'s; the files here look at the world, change it and
talk to control: loop (the one task that owns the state), perform (effects), process, launch, ports, probe, gpu (the
world), journal and identity (the disk), reattach (evidence after a restart), link (control), api (read-only).
"""
