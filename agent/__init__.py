"""The DaemonSet: reads a machine's hardware and the kubelet's allocations, publishes them."""
