"""Devices that several nodes reach: how many pods get some, on all these nodes together."""
