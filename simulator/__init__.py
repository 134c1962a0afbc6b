"""The engine and the queue core in discrete time, without a cluster. Pure, like `engine`; its dice are seeded.

1. In come a cluster, jobs and a policy (`model`); `generate` draws jobs from a seed.
2. `entering` submits jobs to the queues as the controller would.
3. `run` takes the events of one moment, runs admission cycles until nobody is left, and carries out their decisions at
   once (`world`: nodes, kubelets, schedulers that only count).
4. `tracks` follows each job, `tally` and `fragments` measure, `moves` moves jobs that run.
5. `results` go out, and a `summary` of them.

`defrag` plans which workloads to move. `paper`, `figures`, `saturated` and `servers` repeat a published evaluation.
"""
