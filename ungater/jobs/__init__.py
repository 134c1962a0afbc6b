"""Owners of pods, one module a kind: each reads its kind into a `JobView`, and nothing else knows the kind.

1. An informer has an owner, or only its pods: `job`, `jobset`, `leaderworkerset`, or `pod_group` for all other pods.
2. The module of the kind makes the view: pod sets with count, template, request and ranks, and whether it is over.
3. `native_groups` adds the requests of Kubernetes' own PodGroups, `exclusive_topology` those of exclusive placement.
4. Where pods do not tell how many there will be, `replica_counts` asks their controller; `kinds` has the labels by
   which operators tell their kinds of pods.

The way back is `pod_template`: the patches that start and suspend a job. `failures` says how a Job counts evicted pods.
"""
