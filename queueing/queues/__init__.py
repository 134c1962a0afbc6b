"""All queues and who is in them: order, quota, flavors, and what admitted workloads use."""
