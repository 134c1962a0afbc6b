"""Which workload is next, and whether quota lets it in. Pure, like engine."""
