"""The kubelet's podresources API: messages (generated) and a client."""
