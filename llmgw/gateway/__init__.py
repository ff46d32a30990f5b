"""The gateway process: moves bytes between clients and engines, and asks control for nothing it needs to go on.

    client ── proxy.Downstream ── exchange.Exchange ── proxy.Upstream ── engine
                  http1              │   openai            http1
                                 balance (who)      feed (table in, demand out)      door (listener out)

`http1` frames bytes, `openai` words answers, `balance` chooses, `exchange` is one request's life: none of them knows a
socket. `proxy` owns the sockets of the data path, `feed` speaks with control through it, `door` hands the listener to a
new control, `main` puts it together. Nothing here may import control or agent.
"""
