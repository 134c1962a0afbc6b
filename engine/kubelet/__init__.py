"""One pod on one machine, exactly as its kubelet would admit it.

In come a layout, a state and a pod (`machine`); `admit` gives an `admission`: yes or no, zones, CPUs, devices, the
state.

1. `resource_requests` has the request of each container to each manager; `numa_policy` the wish of the workload.
2. `hints` lists for each resource which zones could hold it; `hint_merge` merges them as the Topology Manager does.
3. `allocators` allocate in the merged zones: CPUs (`cpu_manager`), memory (`memory_manager`), devices
   (`device_manager`, and `devices` for the choice among them).
4. `charge` takes a placement from a state, or gives it back; `rebuild` makes the state of a report and its pods.

`arrival_orders` asks whether all pods on their way fit in any order; `disagreement` says why not; `slow_hint_merge`
names kubelets that would take minutes; `observed_devices` compares with the devices that a pod really got.
"""
