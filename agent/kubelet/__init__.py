"""The kubelet of the node: what it is set to and what it has given out, from its files and its podresources API."""
