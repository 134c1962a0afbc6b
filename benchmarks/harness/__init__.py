"""What several benchmarks stand on: a control plane, a table, and the servers and clients of the webhook's."""
