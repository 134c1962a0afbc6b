"""Pods, and the nodes that they go to, in the words of the engine. Pure.

1. A node or a pod comes in on the wire; `convert` makes the engine's `Node`, `Pod` or `PodSet` of it.
2. `requests` counts the requests of a pod as kube-scheduler does; `resizes` knows pods that a kubelet resizes.
3. `shapes` is the pod as its kubelet looks at it; `devices` and `device_claims` are its claims, `volumes` its volumes.
4. `exclusive` and `features` add the demands of controllers and kubelets on nodes; `defaults` those of the API server.

`templates`, `placement_fields` and `limits` compare and bound pod templates.
"""
