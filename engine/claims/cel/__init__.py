"""Expressions in CEL as Kubernetes evaluates them in selectors of devices.

The language of github.com/google/cel-go with the libraries and the limits of Kubernetes 1.37
(k8s.io/apiserver/pkg/cel). What is not evaluated here is refused with its name, and never guessed.
"""
