"""The page: a cluster as a picture in a browser, kept up to date. Read-only (docs/web.md).

1. `live` watches by the controller's informers; `facts` turns each object into plain facts.
2. `board` keeps the facts: who holds how much on which host (`claim_devices`: claimed devices).
3. `live` publishes a version a few times a second at most. `hub` has the versions: `deltas` of changes, and JSON by
   `picture`, once for all viewers with the same `sight`; `history` samples the day.
4. `server` sends pictures and changes; `viewers` decides who may see them.
5. Questions about one thing go to `inside` (a host, a workload), `events` and `prometheus` (by `prometheus_api`), or
   through `questions` to the command that runs the page.

`export` writes the page into one file, `film` a simulation moment by moment.
"""
