"""What pods, and the nodes that they go to, are to the engine."""
