"""Victims: the workloads and pods that go so that one workload gets its quota and its room.

In comes a workload with an option that does not fit; `search` finds a plan, on the real state that is rolled back:

1. `candidates`: workloads that the queues' policies allow, and that no budget protects.
2. `domains`: the domains that could take the pods if candidates were gone, the cheapest first; `relief` adds what comes
   free of claimed devices.
3. `proposals`: units to take in each domain, by sums, or node by node where kubelets decide (`inside_nodes`).
4. `simulate` takes the units out and places the workload; victims that it does not need stay (`necessity` proves need).
5. With few candidates `subsets` goes through all sets. `landings` and `fragmentation` compare plans that tie.

Out goes a `plan`, or None. `promised_room` looks at room that victims of other preemptors leave.

`engine.preemption` is the other search: victims for one pod on one node. Only `inside_nodes` asks it.
"""
