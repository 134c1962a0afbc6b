"""The admission cycle: who is looked at, what is decided about each, and what is kept for those who waited long."""
