"""Writes to the API server.

- `pods` sends ungating patches, nominations and deletions: many at a time, one namespace after the other. An
  expectation is noted before the patch is sent, and holds the slot until the watch shows the pod ungated or gone.
- `workloads` writes Workloads. It returns once the outcome is known, whatever happened to the answer; a change by
  somebody else raises `Overtaken` with what is stored.
- `evictor` asks the Eviction API, so that PodDisruptionBudgets hold, and says who is blocked and since when.
- `events` tells people, on the job.
"""
