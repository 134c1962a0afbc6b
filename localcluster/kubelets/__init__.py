"""Simulated kubelets for KWOK nodes. See docs/localcluster.md."""
