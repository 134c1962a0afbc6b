"""``topogate defrag``: which moves would make the most domains whole, and carrying them out."""
