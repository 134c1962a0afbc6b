"""The objects of an installation, as kustomize files.

1. The YAML in `manifests/base` and beside it is what kustomize takes.
2. `render` reads it for ``topogate install``, for any key domain, namespace and image.
3. `generate` makes the Helm chart (`chart`: templates, `values`: values and their schema) and the overlay beside Kueue.
"""
