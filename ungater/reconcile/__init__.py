"""The actions for one workload now: pure functions of its entry and of rules that hold for all.

1. `reconcile` begins: a job that is over, is left to others, or has no Workload yet ends here.
2. A job that can be given nothing as it is gets a reason: its pods differ (`as_made`), or do not come (`missing_pods`).
3. `life_seen` reads what is known of its life, and `lifecycle` has the rules: wait, start, evict, suspend, give back.
4. `ungating` is the recipe for pods of an admitted workload, and `pod_set_ungating` finds each a slot. `granted`
   bars pods that ask for more than was granted, `volume_slots` those that their volumes bar, `native_groups` those that
   wait for their group; `let_go` judges pods that were let go and do not run; `moves` and `partial_eviction` replace
   pods; `resize` asks for more slots or gives some back.
5. `said`, `pods_ready` and `messages` have the words; `nominated_nodes` has kube-scheduler keep room for pods behind
   the gate.
"""
