"""One picture of a machine's inside from whatever its node publishes.

`describe` reads FlexTopo, NodeResourceTopology and the node's annotations. Exact FlexTopo goes first, then
NodeResourceTopology, then FlexTopo without the kubelet's full state, then the annotations alone. Each is checked as it
is read: what is wrong is a problem with the object, the field, the bad value and what was expected, and the amount in
question then counts as nothing, so that no pod is sent where it cannot start. Pure: objects in, `DescribedMachine` out.
"""

from ungater.numa.sources.describe import DescribedMachine, SourceRules, describe

__all__ = ["DescribedMachine", "SourceRules", "describe"]
