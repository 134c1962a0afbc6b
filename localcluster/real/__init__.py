"""Real, unmodified kubelets as nodes of a local cluster, each on a described machine and without containers.

A node is two processes: the kubelet in namespaces of its own, in which it sees the described machine (``enter``), and
what is not real (``__main__``): the container runtime and the device plugins. See docs/localcluster.md.
"""
