"""All that is held: for workloads, for their pods, and for pods that run on without a workload.

1. `pod_sets` has the requests of a job, with those of its volumes (`pod_volumes`) and claims (`device_claims`,
   `claimed_devices`, `named_claims`, `job_claims`, `known_claims`); `device_quota` their quota.
2. `reservations` holds it in the engine and in the queues, which change together there and nowhere else.
3. `admissions` draws the consequences for the pods, for victims and for workloads that wait.
4. `charges` charges each pod to its node, or to the slot that it fills; `overruns` finds pods that take more than was
   admitted.
5. A pod that leaves its workload is paid for by `left_pods`, and by `orphans` once no workload answers for it.

After a restart, `rebuilt` holds the places of pods that run, where the Workload was deleted meanwhile (`kept_pods`).
"""
