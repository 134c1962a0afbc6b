"""The objects of an installation, as kustomize files. `manifests.render` reads them for ``topogate install``."""
