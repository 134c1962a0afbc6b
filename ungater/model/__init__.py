"""Plain data that all of `ungater` shares. Rules are here only where they belong to the data.

- A job: `job_view` (a job of any kind), `pod_set_slices` (slices of a pod set).
- The memory of the controller about it: `workload_entry`, with `write_state` (writes under way), `pods_seen`,
  `held_pods`, `nominated_node`, `unscheduled` and `unstarted` (pods on their way).
- Its place: `admission`, which reads and writes what a Workload stores of it, too; `pod_slots` says which pod holds
  which slot (`tally`), and which slot a gated pod gets (`assign`).
- The next steps: `actions`, and `conditions` that a Workload should have.
- On the wire: `workload_spec` and `workload_status` (a Workload), `ungate_patch` (the patch of a pod), `move_request`,
  `kueue_objects`. `class_rules` are the rules of priority classes.
"""
