"""Who pays for a pod: its node in the engine, and its workload or itself in the queues.

1. `pod_charges` charges each pod to its node, or to the slot that it fills.
2. `left_pods` decides who pays for a pod that runs: its workload, the one that it left, or `orphans`, once no workload
   answers for it.
3. `overruns` charges what the pods of a workload take beyond what it was admitted with.
"""
