"""Carries out what was decided, and clears away what nobody owns any more."""
