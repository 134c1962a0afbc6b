"""Objects of the API, from JSON. Whatever is wrong in one is its own error, with the field."""
