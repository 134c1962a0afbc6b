"""What node labels say about the topology: known keys, how they nest, and which of them make a flavor."""
