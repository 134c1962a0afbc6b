"""The engine and the queue core in discrete time, without a cluster. Pure, like engine; its dice are seeded."""
