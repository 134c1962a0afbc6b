"""Victims for one pod: which node, and which of its pods, so that its kubelet really grants the room. Exact.

1. In come rooms (`model`: a node, its free amounts, its victims) and a preemptor.
2. `blocks` are the parts of a node that the pod may land in, with the amounts that each victim gives back there.
3. `roster` has the blocks of many nodes in columns, with bounds; `one_room` is the same for a single node.
4. `search` goes by the best bound: `cover` finds the cheapest victims of a block, and the kubelet of the node confirms.
5. Out goes the best choice of node and victims, or None.

`every_subset` tries all sets of victims, to be compared with. `queueing.preemption` is the other search: victims for a
workload, with quota and domains. It asks this one where the inside of nodes decides.
"""
