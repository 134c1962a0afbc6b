"""``topogate web``: the page, of a cluster or of a snapshot of one."""
