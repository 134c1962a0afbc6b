"""Carries out the actions of `ungater.reconcile`, and looks at times for changes that no event tells of.

1. `executor` takes the actions of one look in their order. Most change the cache at once or hand a pod to a writer.
2. An action that awaits the API server ends the look: the actions after it may be stale by then.
3. `start_stop` resumes and suspends jobs; `eviction` has pods go, and gives back what the workload held.
   `ordered_writes` makes one write of a Workload after another, and drops one that was decided on an older state.
4. `deferred` keeps writes that can wait, until nothing better is to be done.

Beside this: `sweeper` looks at deadlines and gauges every few seconds; `unowned` finds Workloads and pods of nobody;
`notices` tells administrators of nodes; `evicted` reads conditions; `messages` has the texts.
"""
