"""What is known of the cluster, fed by informer events, and what is held in it for workloads."""
