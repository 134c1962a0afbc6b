"""Inside the node: what a kubelet will make of a pod, and which zones and devices it takes."""
