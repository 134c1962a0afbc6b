"""Decisions. Pure: no I/O, no clock, no Kubernetes client, no asyncio; equal inputs give equal outputs."""
