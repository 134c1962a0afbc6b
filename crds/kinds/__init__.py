"""The models of the API: one module a kind, and what they share."""
