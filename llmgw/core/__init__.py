"""The decisions of llmgw as pure functions: no clock, socket, file, process, randomness or logging.

Control: `reconcile.observe(state, event, now)` folds a fact in, `reconcile.decide(state, now)` looks at the whole and
lists verdicts and actions. Agent: `supervise.supervise(node, event, now)` answers with effects. Values are frozen,
unions closed. Laws: docs/design.md.
"""
