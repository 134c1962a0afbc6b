"""All that is held for workloads.

1. `pod_sets` has the requests of a job, with those of its claims (`ungater.cache.claims`).
2. `reservations` holds it in the engine and in the queues, which change together there and nowhere else.
3. `admissions` draws the consequences for the pods, for victims and for workloads that wait.

What pods take of it is charged in `ungater.cache.charges`. After a restart, `rebuilt` holds the places of pods that
run, where the Workload was deleted meanwhile (`kept_pods`).
"""
