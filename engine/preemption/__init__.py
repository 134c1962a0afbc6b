"""Who has to go so that a pod that may preempt gets a node, and room on it that its kubelet really grants."""
