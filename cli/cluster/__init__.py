"""A cluster as the controller knows it: read once, from the live one or from files; and what it would decide there."""
