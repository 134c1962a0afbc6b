"""All that the controller knows of the cluster, and all that is held in it for workloads.

In come events of informers, one after another. Each takes this way:

1. The part for its kind takes it: `jobs`, `pod_groups`, `pods`, `workloads`, `nodes`, `config`, `volumes`, `devices`,
   `pdb`. `core` has what these parts share.
2. The owner of pods becomes a view (`views`), and the view an entry; `entries` and `owners` find an entry again.
3. Its share of nodes, queues and devices changes in `held` and `charges`, which change the engine and the queues
   together. `claims` says what claims of devices and volumes ask for.
4. Out go ids of entries to look at, and the wish for an admission cycle.

Everything else reads: `ungater.reconcile` an entry, a cycle the engine's state and the queues. `cache` builds the
parts; its `load` rebuilds all of it from lists. `stores` are the look-ups in what informers keep; `rules` are settings
as rules.
"""
