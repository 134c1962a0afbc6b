"""``topogate doctor``: what is wrong with an installation or its cluster, and the command that mends it."""
