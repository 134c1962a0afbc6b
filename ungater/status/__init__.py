"""The status of queues and flavors.

1. `queues` compares the standing of each queue (`queueing.status`) with its stored status, and writes differences: each
   queue at most every few seconds.
2. `flavors` counts the nodes of each flavor with a topology, and writes its condition. Nodes that lack the label of a
   level get an event; `flavor_labels` finds labels that are odd as a whole.
"""
