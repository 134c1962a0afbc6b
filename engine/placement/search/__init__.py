"""Searches for better choices of domains: exact ones, and ones in fewer wider domains."""
