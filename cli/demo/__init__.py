"""``topogate demo``: the main job, shown to a person."""
