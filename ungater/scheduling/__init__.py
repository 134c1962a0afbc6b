"""Runs admission cycles, and stores what they decided.

1. `scheduler` begins each cycle with other slots for lost ones, asked of the engine by `replacement`.
2. It runs `queueing.cycle.cycle`. All decisions are held in memory when that returns.
3. `writes` stores it: one write after another for a workload, and none that was decided on an older state. The plan of
   a preemption is stored before its first eviction, an admission before its first pod goes.
4. Where storing fails for certain, the state before is held again.
5. Where nobody is left to look at, `moves` asks `relocation` whether a workload that runs has a better place.

`admission_conditions` and `move_messages` have the words; `stale_reasons` finds workloads whose reason may hold no
more; `old_places` gives places back after a move that did not happen.
"""
