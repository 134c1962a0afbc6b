"""``topogate whatif``: a described cluster in, the engine's decision out."""
