"""Control's two functions: `observe.observe(state, event, now)` folds a fact in, `decide.decide(state, now)` looks at it all."""
