"""The order of workloads, their quota, and the victims that make room for them. Pure, like `engine`.

The caller feeds events into `Queues` (`queues`) and calls `cycle.cycle` with the engine's state and the time:

1. Workloads, queues, namespaces and flavors come in as the plain data of `model`.
2. `queues` keeps who waits, in which order, and who holds how much.
3. `cycle` looks at workloads in turn: admit, preempt, or wait with a reason. It holds each decision at once.
4. `preemption` finds the victims, where quota or room is lacking.
5. `Decisions` go out. The caller stores them, and takes back each one that it could not store.

`moves` and `making_room` say when workloads that run may move; `explain`, `messages` and `status` tell people.
"""
