"""Which devices a pod's ResourceClaims get on a node, and how many such pods fit there.

Everything here follows Kubernetes' own allocator for structured parameters (k8s.io/dynamic-resource-allocation 1.37,
variant incubating, which the default gates select): the same devices in the same order, the same errors. It is a pure
function of the objects given: ResourceSlices, DeviceClasses, ResourceClaims and devices in use.
"""
