"""Volumes as Kubernetes has them: claims, volumes, classes, and what nodes attach of them."""
