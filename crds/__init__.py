"""The API: one pydantic model a kind, and constants for every label, annotation and gate."""
