"""The inside of all nodes at once. It agrees with `engine.kubelet`, which tests hold it to.

1. `zone_ledger` takes in machines, pods and slots. `node_zones` keeps one node: what is free in its zones, and which
   zones each slot gets; `unrecorded` estimates pods whose zones nobody knows.
2. Machines lie in `columns`, one for each distinct layout and state; `layout_class` says which are counted together.
3. A question about a pod shape goes to `fleets` and `fleet`: which nodes take it, how many, how well aligned.
4. `zone_requests` and `count_plans` say how to count it; `batch` has the closed forms, and the exact admission does the
   rest. A log of changed machines corrects the answer later.
5. `alignment` and `score` compare nodes that take equally many; `refusal` is what a kubelet would say.
"""
