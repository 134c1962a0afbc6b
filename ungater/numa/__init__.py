"""What is known of nodes' insides, and what that means for the pods there."""
