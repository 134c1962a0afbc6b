"""Simulated histories: the real controller on a loop of virtual time, against an API server that is a dict."""
