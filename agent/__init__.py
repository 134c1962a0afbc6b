"""The DaemonSet: it reads a machine's hardware and its kubelet's allocations, and publishes both.

`cycle` turns:

1. `machine` reads hardware from sysfs and NVML, seldom and apart from all else.
2. `kubelet` reads the kubelet's files (copies of them, by `copies`) and its API (`podresources`); `pods` knows the
   pods.
3. `graph` and `status` make a FlexTopo of it, `zones` a NodeResourceTopology with a `fingerprint`,
   `observed` the placement of each pod.
4. `publish` and `observe` write where that differs from the stored objects.

`run` is the process, with its `settings` and `metrics`; `node` is the Node; `background` has calls that block.
"""
