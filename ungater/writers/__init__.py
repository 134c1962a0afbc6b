"""Writes to the API server: Workloads, pods, evictions, events."""
