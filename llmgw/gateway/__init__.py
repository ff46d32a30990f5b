"""The gateway process: moves bytes between clients and engines, and asks control for nothing it needs to go on.

    client ── proxy.Downstream ── exchange.Exchange ── upstream.Upstream ── engine
                  http1       answer     │                  reply
                                 balance (who)      feed (table in, demand out)      door (listener out)

Without sockets or a clock: `http1` reads requests, `reply` reads an engine's answer, `answer` frames what goes out;
`openai`, `problems`, `keys`, `form`, `raw`, `outgoing`, `usage` and `local` know the API; `balance` chooses, with an
`endpoint` for each replica, its `breaker` and the `outlier` rule; `queue` is who waits. `exchange` is one request's
life, `admit` its beginning, `wait` what it does until there is a replica. `proxy` and
`upstream` own the sockets of the data path, `feed` speaks with control through the latter, `door` hands the listener to
a new control, `state` is what all share, `meter` counts, `process` puts it together. `place` is where it serves, new or
taken over; `workers` keeps several `worker` processes, which share `kin`. Nothing here may import control or agent.
"""
