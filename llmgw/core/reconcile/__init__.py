"""Control's two functions: `observe.observe` folds a fact in, `decide.decide` looks at the whole."""
