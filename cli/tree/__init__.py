"""``topogate tree``: the topology domains of a cluster."""
