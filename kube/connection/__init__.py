"""How calls reach the API server: configuration, transport, and what comes back."""
