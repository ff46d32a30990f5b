"""Who owns what runs: `survey.survey(state)` gives every shard one verdict and every incarnation one row.

`claim` asks the catalog, `group` makes one replica of an incarnation's shards, `rivals` ranks claims on one thing.
"""
