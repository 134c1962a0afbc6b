"""Where the pods of a workload go: the search, what changes later, and why there is no place."""
