"""The devices of all nodes: which claims and pods have them, and how many more pods each node takes.

1. `ledger` takes in slices, classes, taints (`taints`) and claims that have devices (`holders`).
2. Pods and slots without devices yet wait on their nodes (`waiting`).
3. A question is about a kind of pods (`kinds`, `known_kinds`): `device_counts` asks `engine.claims` for all nodes, once
   for nodes that look the same, and `node_counts` corrects the answer when nodes change (`changes`). `free_numbers`
   answers without a search where only a number of free devices decides.
4. `common` caps the sum over nodes that reach the same devices; `compute_domains` keeps domains apart.
5. `turns` says whether one pod may go now, `first_fits` which devices it gets; `words` why a node has none.

`facts` hands all of it to another ledger; `of_node` has the counts of one node.
"""
