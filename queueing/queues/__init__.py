"""All queues, with the workloads that wait in them or hold something. `queues` puts the parts together.

1. `config` keeps ClusterQueues, LocalQueues, namespaces and plain flavors.
2. A workload becomes an `entry` in one phase. It waits in `pending_workloads`: in the line of its queue (`pending`),
   put off until a time, or inadmissible until an event could help it.
3. `flavor_assigner` lists the options of a workload, and places one: quota (`quota`) and topology together.
4. Its share is `held` by `holders`; `usage` knows it by node.
5. `leaving` has the workloads and pods on their way out, `claim` the room kept for a workload that has waited long,
   `successor` the workload that gets room which becomes free.

`over_time` has what was used over time, `minimum_run_time` until when a workload is safe.
`rotation` gives namespaces turns; `eviction_units` and `pdb` say what may be evicted, and how much of it.
"""
