"""The topogate command."""
