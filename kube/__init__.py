"""The API server seen from Python, and its objects as the engine takes them.

Reading: `client` lists, `watch` follows, `kept` bounds the size of objects, `informer` keeps the collection and tells
of changes. `objects`, `parents`, `queues`, `replicas`, `topologies`, `budgets`, `workloads` and `told_events` are wire
shapes: the fields that are read, and no other.

Converting: `pods` turns nodes and pods into the engine's data, `volumes` claims and volumes, `links` the links of
devices.

Writing: `client` sends verbs through `connection` (session, transport, credentials); `patches` are kinds of patches;
`events` tells people; `lease` elects a leader, whose writes stop with the lease.

`resources` are paths, `errors` all that can go wrong, `versions` rules of kube-scheduler that differ between versions.
"""
