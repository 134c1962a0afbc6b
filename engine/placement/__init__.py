"""The places of a workload's pods: the search, later changes, and why there is no place.

1. `place` is the way in: pod sets one after another, each in the first flavor that takes it, all or none.
2. `fit` counts one pod set on one flavor, and has the budget of work; `slices` counts whole slices.
3. `choose` compares the domains that could hold all pods (`largest_first`), and goes down to the nodes. `search` finds
   fewer domains than greed does, exactly while the budget lasts; `numa` prefers nodes that align pods.
4. Harder shapes have modules of their own: `group` (pod sets in one domain), `pinned` (pods whose volumes differ),
   `slice_split` (slices over domains).
5. `resize`, `grow`, `refill` and `relocate` change assignments that are held.

`refusals`, `never_fits`, `beyond_nodes` and `explain` say why not; `upper_bounds` are for searches of victims.
"""
