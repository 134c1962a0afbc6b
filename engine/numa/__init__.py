"""The inside of all nodes at once: zones and who holds them, counts in columns. Agrees with `engine.kubelet`."""
