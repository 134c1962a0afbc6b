"""Whom to evict so that a workload gets its quota and its room: workloads, and slices of them."""
