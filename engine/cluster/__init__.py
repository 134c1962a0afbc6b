"""The cluster in columns and trees: nodes, the pods that fit on them, the pods and reservations that are there.

1. `state` takes events in: `nodes` and their numbers (`node_columns`), pods (`affinity_index`, `shared_volumes`), and
   `reservations`, whose slots pods fill.
2. `tree` has the nodes of a flavor in `natural_order`, so that each domain is one range of leaves; `levels` reads
   labels.
3. A pod shape is counted once (`fit_counts`): `filters` says which nodes count at all, free amounts divided by requests
   how many pods, the machines and devices how many of these. A log of changed nodes corrects the counts later.
4. `affinity` cuts the counts to what affinity and spread allow.
5. `unusable_slots` says which slots are lost; `capacity` and `unlabeled` are for people.

`undo_log` brings everything back to where a transaction began. An `assignment` is one reservation.
"""
