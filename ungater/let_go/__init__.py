"""Pods that were let go, until they run: what kube-scheduler and kubelets say of them, and what follows for nodes."""
