"""Beside Kueue: Kueue keeps quota and queues, Topogate answers the admission check ``topogate.dev/topology``.

1. `bridge` watches Kueue's objects (`ungater.model.kueue_objects` has their shapes).
2. `decide` says what Kueue holds of a job, and how the controller looks at that job; `standings` keeps it.
3. The job takes the usual way through `ungater.reconcile` and the admission cycle.
4. `answers` says what its check should be, `retries` how long it keeps quota without a place. Both are pure.
5. `bridge` writes the check where it differs.
"""
