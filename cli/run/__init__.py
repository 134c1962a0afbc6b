"""Topogate's components as processes."""
