"""``topogate install`` and ``uninstall``."""
