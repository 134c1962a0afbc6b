"""The cluster in columns and trees: nodes, what fits on them, what is held, and who is where."""
