"""The devices that a pod's ResourceClaims get on a node, and how many such pods fit there.

Everything here follows Kubernetes' own allocator for structured parameters (k8s.io/dynamic-resource-allocation 1.37,
variant incubating, which the default gates select): the same devices in the same order, the same errors. It is a pure
function of the objects given: ResourceSlices, DeviceClasses, ResourceClaims and devices in use.

1. `read` turns objects of the API into `model`; `pools` and `hardware` say which devices a node reaches, in which
   order.
2. `allocate` is the way in: `prepare` reads the claims of a pod against a node once.
3. `searching` finds devices, depth first; `cel` evaluates selectors; a `budget` of steps ends both.
4. `results` come out: devices, or why there are none, or that the search was given up.
5. `counting` repeats that pod after pod, once for nodes that look the same.

`extended` makes claims of extended resources; `in_use` are devices that are taken; `features` are feature gates.
"""
