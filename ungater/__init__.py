"""The controller: it admits workloads, gives each pod a slot and lets it go. Nothing else writes admissions.

How an event becomes a patch:

1. `informers` watches; each change goes to the part of `cache` that is for its kind.
2. `cache` is all that the controller knows. It takes the change into an entry, and puts the entry's id into
   `workqueue`.
3. A worker of `controller` takes the id, and `reconcile` decides what to do: pure, from the entry to actions.
4. `executor` carries the actions out: by `writers`, or by a change of `cache`.
5. A workload that waits is in the queues of `cache`. `scheduling` runs the cycle of `queueing` on them and stores the
   decisions; a workload that was admitted is looked at again.

Beside this: `process` waits for the lease and runs one `controller` a term; `jobs` reads owners of pods into one view;
`let_go` and `numa` follow pods on their way to a node; `kueue` answers an admission check; `status` writes that of
queues and flavors; `model` is plain data.
"""
