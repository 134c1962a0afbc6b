"""How many pods with claims fit nodes: counted once for nodes that look the same, and beside others that wait."""
