"""What pods with resource claims take of nodes' devices, and how many more of them each node takes."""
