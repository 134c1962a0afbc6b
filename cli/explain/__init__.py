"""``topogate explain``: where a job's pods went, or why it waits."""
