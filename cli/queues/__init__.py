"""``topogate queues``: who waits in the queues."""
