"""Where pods go. Pure: no I/O, no clock, no Kubernetes client, no asyncio; equal inputs give equal outputs.

1. Nodes, flavors, pods, machines and devices come in as the plain data of `model`, through `ClusterState` (`cluster`).
2. `placement` counts how many pods fit each node and domain, and chooses domains. It leaves the state as it was.
3. It asks how many pods one node takes of `cluster` by amounts, of `numa` by zones (which agrees with `kubelet`, the
   exact admission of one pod), and of `devices` by claims (which asks `claims`, the exact allocation of one pod).
   `claim_zones` brings the devices of claims and the zones of CPUs together.
4. `Placement` or `Refusal` goes out (`results`); a refusal has one of `reasons` and says how close it came.
5. The caller reserves the placement. The state is transactional, so a what-if begins, tries and rolls back.

`preemption` finds victims for one pod on one of many nodes. `reservation_key` says under which keys room and quota are
held. `arrays`, `latest` and `quantity` are tools.
"""
