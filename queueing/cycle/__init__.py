"""The admission cycle: a recipe with numbers, in `cycle`.

- `nominated`: a workload whose victims are all gone is admitted, into the room that was kept for it.
- `backfill`: a workload that has waited too long keeps room and quota from the workloads behind it. `successors`: one
  that fits once leaving workloads are gone keeps the part of their room that is free already.
- `turns`: the order of looks, among workloads that wait and workloads that want more pods.
- `nominate`: one look at one workload. It fits, preempts or waits; it may fit with fewer pods, where it allows that
  (`bisection`, `rollout`). `emptied` tells whether it waits for room at all.
- `elastic` and `growth`: more pods for workloads that are admitted, also by victims.
- `shield`: an error that one workload leads to costs that one its place in line, and others nothing.

In come the engine's state, the queues and the time; `Decisions` go out, and are held already.
"""
