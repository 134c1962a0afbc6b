"""``topogate simulate``: the engine and the queues in discrete time."""
